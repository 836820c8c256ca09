"""The policy's rules. Each looks at one part of a message; it says what is wrong, or what it changed."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, final

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammaincinv

from glasshouse.gate.mechanism import BLOCK, blocks
from glasshouse.gate.message import Arrays, Outgoing, Reason
from glasshouse.gate.policy import Out, ShownNoise

ALARM: Final = 1e-3
"""Share of honest messages, with exactly the required noise, that the rule refuses."""
FEWEST: Final = 8
"""Columns below which half of the required noise could not be told from all of it."""
_SHOWN: Final = 24


@final
@dataclass(kw_only=True)
class Change:
    """How the tensors of a message differ from those that were received.

    Attributes:
        norm: L2 norm of the change of all changeable tensors together; infinite if a value is not finite.
        changed: share of their numbers that changed.
        numbers: how many numbers they have.
    """

    norm: float = 0.0
    changed: float = 0.0
    numbers: int = 0


@final
@dataclass(frozen=True, kw_only=True)
class Treated:
    """What a rule made of the numbers and documents beside the tensors.

    Attributes:
        kept: what may leave, by name.
        refusals: reasons to refuse.
        changes: what was changed.
    """

    kept: Mapping[str, object] = field(default_factory=dict)
    refusals: tuple[Reason, ...] = ()
    changes: tuple[Reason, ...] = ()


def agreed_form(arrays: Arrays, received: Arrays) -> list[Reason]:
    """Names, shapes and types must be those that were received."""
    found = []
    if unknown := sorted(arrays.keys() - received.keys()):
        found.append(Reason(rule="extra_tensor", detail=_names(unknown)))
    if missing := sorted(received.keys() - arrays.keys()):
        found.append(Reason(rule="missing_tensor", detail=_names(missing)))
    for name in arrays.keys() & received.keys():
        sent, expected = arrays[name], received[name]
        if sent.shape != expected.shape:
            found.append(Reason(rule="shape", detail=f"{shorten(name)}: {sent.shape}, not {expected.shape}"))
        elif sent.dtype != expected.dtype:
            found.append(Reason(rule="dtype", detail=f"{shorten(name)}: {sent.dtype}, not {expected.dtype}"))
    return found


def split_buffers(arrays: Arrays, received: Arrays, out: Out) -> tuple[Arrays, list[Reason], list[Reason]]:
    """Set tensors whose type may not change back to what was received, or refuse them.

    Returns:
        The tensors that may change, reasons to refuse, what was changed.
    """
    floating = {name: array for name, array in arrays.items() if array.dtype.name in out.dtypes}
    refusals, changes = [], []
    for name in [name for name in arrays if name not in floating]:
        if np.array_equal(arrays[name], received[name]):
            continue
        reason = Reason(rule="buffer", detail=shorten(name))
        if out.buffers == "refuse":
            refusals.append(reason)
        else:
            arrays[name][...] = received[name]
            changes.append(reason)
    return floating, refusals, changes


def measure_change(arrays: Arrays, received: Arrays) -> Change:
    """The size of the change, in float64; -0 and denormal numbers of ``arrays`` become 0, in place.

    Examples:
        >>> sent, base = {"w": np.array([3.0, 0.0, 4.0], np.float32)}, {"w": np.zeros(3, np.float32)}
        >>> c = measure_change(sent, base)
        >>> c.norm, round(c.changed, 2)
        (5.0, 0.67)
    """
    total, changed, numbers = 0.0, 0, 0
    for name, array in arrays.items():
        smallest = np.finfo(array.dtype).tiny
        most = min(BLOCK, array.size)
        sizes, marks = np.empty(most, array.dtype), np.empty(most, np.bool_)
        for part, _, change in blocks(array, received[name]):
            size, mark = sizes[: part.size], marks[: part.size]
            total += sum_squares(change)
            changed += int(np.count_nonzero(np.not_equal(change, 0, out=mark)))
            if np.less(np.abs(part, out=size), smallest, out=mark).any():
                part[mark] = 0  # also turns -0 into 0: neither can carry a bit
            numbers += part.size
    norm = math.sqrt(total) if math.isfinite(total) else math.inf
    return Change(norm=norm, changed=changed / numbers if numbers else 0.0, numbers=numbers)


def measure_step(arrays: Arrays, before: Arrays) -> float:
    """L2 norm of the change between two models of one form, over their floating tensors."""
    floating = [name for name, array in arrays.items() if array.dtype.kind == "f"]
    squares = (sum_squares(c) for name in floating for _, _, c in blocks(arrays[name], before[name]))
    return math.sqrt(sum(squares))


def sum_squares(change: NDArray[np.float64]) -> float:
    """The sum of squares of one block, without BLAS.

    BLAS starts threads for a block of this size, which wait in a loop between blocks: on a busy machine that
    took ten times the processor time of all other rules.
    """
    return float(np.einsum("i,i->", change, change))


def limited_change(change: Change, out: Out) -> list[Reason]:
    """The change must be finite, within the norm unless the gate clips, and touch enough numbers."""
    found = []
    if not math.isfinite(change.norm):
        found.append(Reason(rule="not_finite"))
    elif out.norm and change.norm > out.norm:
        found.append(Reason(rule="norm", detail=f"{change.norm:.6g} > {out.norm:g}"))
    if change.changed < out.sparsest:
        found.append(Reason(rule="sparse", detail=f"{change.changed:.3g} < {out.sparsest:g}"))
    return found


def shown_noise(arrays: Arrays, received: Arrays, rule: ShownNoise) -> tuple[list[Reason], float | None]:
    """The required noise must show in the last layer.

    Returns:
        Reasons to refuse, and the upper confidence limit of the noise; None if nothing can be told.
    """
    if rule.layer not in arrays:
        ceiling = None
    else:
        sent = arrays[rule.layer].astype(np.float64)
        ceiling = noise_ceiling(sent - received[rule.layer])
    if ceiling is None:
        unclear = [Reason(rule="noise_unclear", detail=shorten(rule.layer))]
        return (unclear if rule.unclear == "refuse" else []), None
    if ceiling < rule.std:
        return [Reason(rule="noise", detail=f"at most {ceiling:.3g} < {rule.std:g}")], ceiling
    return [], ceiling


def noise_ceiling(change: NDArray[Any]) -> float | None:
    """Upper confidence limit on the standard deviation of the noise in a last layer's change (K, F).

    Under cross-entropy the columns of the last layer's gradient sum to zero over the classes, and so do sums
    of such gradients (:func:`glasshouse.privacy.marks.zero_sums`, here without torch). Independent noise
    breaks that: the sums, divided by √K, have the noise's standard deviation. The mark proves that noise is
    there, not whose: an app can add noise that its server can compute.

    None: it cannot be told from fewer than ``FEWEST`` columns or two classes. A message is refused if even
    this limit, at confidence 1 - ``ALARM``, is below the required noise. (A rule that asks for the *lower*
    limit would refuse nearly every client that adds exactly what is required.)

    Examples:
        >>> honest = np.array([[1.0] * 50, [-1.0] * 50])
        >>> noise_ceiling(honest)
        0.0
        >>> noise_ceiling(honest[:, :3]) is None
        True
    """
    if change.ndim != 2 or len(change) < 2 or change.shape[1] < FEWEST:
        return None
    sums = change.astype(np.float64).sum(0) / len(change) ** 0.5
    lowest = 2 * gammaincinv(change.shape[1] / 2, ALARM)  # a chi-squared number is above it but for ALARM
    return float(np.sqrt((sums**2).sum() / lowest))


def treat_fields(message: Outgoing, out: Out) -> Treated:
    """The numbers beside the tensors: n rounded down or fixed, listed ones as the policy says, no others."""
    kept: dict[str, object] = {}
    refusals: list[Reason] = []
    changes: list[Reason] = []
    for name, value in message.fields.items():
        if name in out.examples.fields:
            result = _examples(name, value, out)
        elif name in out.fields and isinstance(value, int | float):
            result = _metric(name, float(value), out)
        else:
            result = _unlisted(name, out)
        kept.update(result.kept)
        refusals += result.refusals
        changes += result.changes
    # An update without its number of examples, or with two of them, would escape the smallest number.
    counts = {value for name, value in message.fields.items() if name in out.examples.fields}
    if message.arrays and not message.masked and out.examples.least > 1 and not counts:
        refusals.append(Reason(rule="examples", detail="no number of examples"))
    if len(counts) > 1:
        refusals.append(Reason(rule="examples", detail="several numbers of examples"))
    return Treated(kept=kept, refusals=tuple(refusals), changes=tuple(changes))


def treat_documents(message: Outgoing, out: Out) -> Treated:
    """Texts, bytes, flags and lists beside the tensors: none leaves as it is."""
    results = [_unlisted(name, out) for name in message.documents]
    return Treated(
        refusals=tuple(reason for result in results for reason in result.refusals),
        changes=tuple(reason for result in results for reason in result.changes),
    )


def _examples(name: str, value: object, out: Out) -> Treated:
    rule = out.examples
    if isinstance(value, bool) or not isinstance(value, int | float) or value != int(value):
        return Treated(refusals=(Reason(rule="examples", detail="not a whole number"),))
    if value < rule.least:
        return Treated(refusals=(Reason(rule="examples", detail=f"{int(value)} < {rule.least}"),))
    # A number without an end would carry a row of data in its digits; those of this one are not printed.
    if value > rule.most and not rule.fixed:
        return Treated(refusals=(Reason(rule="examples", detail=f"more than {rule.most}"),))
    sent = rule.fixed or int(value) // rule.multiple * rule.multiple
    changes = (Reason(rule="examples_rounded", detail=f"{int(value)}"),) if sent != value else ()
    return Treated(kept={name: sent}, changes=changes)


def _metric(name: str, value: float, out: Out) -> Treated:
    reason = Reason(rule="metric", detail=shorten(name))
    if out.metrics == "refuse" or not math.isfinite(value):
        return Treated(refusals=(reason,))
    if out.metrics == "strip":
        return Treated(changes=(reason,))
    if out.metrics == "pass":
        return Treated(kept={name: value})
    low, high = out.metrics_range
    rounded = round(min(max(value, low), high) / out.metrics_step) * out.metrics_step
    return Treated(kept={name: rounded}, changes=(Reason(rule="metric_rounded", detail=shorten(name)),))


def _unlisted(name: str, out: Out) -> Treated:
    reason = Reason(rule="unlisted", detail=shorten(name))
    return Treated(refusals=(reason,)) if out.unlisted == "refuse" else Treated(changes=(reason,))


def shorten(name: str) -> str:
    """A name as it may stand in the log: cut short, as a hostile app can write a row of data into it.

    Examples:
        >>> shorten("conv1.weight"), len(shorten("x" * 500))
        ('conv1.weight', 25)
    """
    plain = "".join(c if c.isprintable() else "?" for c in name[:_SHOWN])
    return plain + ("…" if len(name) > _SHOWN else "")


def _names(names: list[str]) -> str:
    return ", ".join(map(shorten, names[:3])) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
