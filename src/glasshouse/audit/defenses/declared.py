"""What a declared defence must leave in the updates, and how that compares with what was seen."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal, final

from glasshouse.audit.defenses.observe import GAUSSIAN, LAPLACE, Observation
from glasshouse.registry import create, load
from glasshouse.settings import PLAIN
from glasshouse.wire import Mechanism, Terms, Update

Ruling = Literal["as declared", "off", "mis-set", "never binds", "partly", "cannot be told", "not declared"]

FAULTS: Final = frozenset({"off", "mis-set", "never binds", "partly"})
"""Rulings under which a declared defence does not do what was declared."""
_CLOSE: Final = 0.05
_SIZES: Final = ("norm", "tensor_norm", "largest")
_NAMES: Final = {
    "norm": "clip", "tensor_norm": "clip_layers", "largest": "clip_values", "zeros": "prune",
    "total_zeros": "percentile", "noise": "noise",
}  # fmt: skip


@final
@dataclass(frozen=True, kw_only=True)
class Mark:
    """One thing that a declared defence must leave.

    Attributes:
        kind: of the observation that shows it.
        setting: name of the defence's argument, or what it comes to.
        value: its value; None where the terms do not determine it.
        family: of a noise.
    """

    kind: str
    setting: str
    value: float | None
    family: str = ""


@final
@dataclass(frozen=True, kw_only=True)
class Judged:
    """One mark of one defence at one client.

    Attributes:
        defense: registered name, or a description of what was seen without a declaration.
        setting: what was compared.
        declared: its value; NaN: none.
        client: whose updates; None: the server's own steps.
        seen: what was observed.
        ruling: how the two compare.
        reason: one sentence.
    """

    defense: str
    setting: str
    declared: float
    client: int | None
    seen: Observation
    ruling: Ruling
    reason: str


def marks_of(mechanism: Mechanism, update: Update, terms: Terms) -> list[Mark]:
    """What ``mechanism`` must leave in ``update``; empty where updates show nothing of it."""
    given, steps = mechanism.parameters, update.steps
    match mechanism.name:
        case "clip":
            return [Mark(kind="norm", setting="norm", value=float(given["norm"]))]
        case "clip_layers":
            return [Mark(kind="tensor_norm", setting="norm", value=float(given["norm"]))]
        case "clip_values":
            return [Mark(kind="largest", setting="bound", value=float(given["bound"]))]
        case "prune":
            return [Mark(kind="zeros", setting="share", value=float(given["share"]))]
        case "percentile":
            share, bound = float(given["percentile"]) / 100, float(given["bound"]) * steps
            return [
                Mark(kind="total_zeros", setting="percentile / 100", value=share),
                Mark(kind="largest", setting="bound · steps", value=bound),
            ]
        case "sparse_vector":
            share = None if given["replace"] else 1 - float(given["fraction"])
            return [
                Mark(kind="total_zeros", setting="1 - fraction", value=share),
                Mark(kind="largest", setting="bound · steps", value=float(given["bound"]) * steps),
            ]
        case "quantise":
            return [Mark(kind="bits", setting="bits", value=float(given["bits"]))]
        case "sign":
            return [Mark(kind="bits", setting="bits", value=1.0)]
        case "gaussian_noise":
            return [Mark(kind="noise", setting="std", value=float(given["std"]), family=GAUSSIAN)]
        case "laplace_noise":
            std = float(given["scale"]) * math.sqrt(2)
            return [Mark(kind="noise", setting="std", value=std, family=LAPLACE)]
        case "gaussian_mechanism":
            return [
                Mark(kind="norm", setting="clip", value=float(given["clip"])),
                Mark(kind="noise", setting="std", value=float(given["std"]), family=GAUSSIAN),
            ]
        case "dp_sgd":
            return [Mark(kind="noise", setting="std", value=_dp_sgd_std(mechanism, update, terms), family=GAUSSIAN)]
    return []


def _dp_sgd_std(mechanism: Mechanism, update: Update, terms: Terms) -> float | None:
    """Noise of an entry of the update; None under momentum, decay, schedules and other optimisers."""
    batch = min(terms.batch_size, update.examples)
    private = create(load("defenses", "dp_sgd"), mechanism.parameters)
    multiplier = float(private.noise(batch_rate=batch / update.examples, steps=update.steps))
    per_step = multiplier * float(mechanism.parameters["clip"]) / batch
    if terms.sends == "gradient":
        return per_step
    if terms.optimizer != PLAIN:
        return None
    return terms.learning_rate * per_step * math.sqrt(update.steps)


def judge(
    mechanisms: Sequence[Mechanism], seen: Mapping[str, Observation], update: Update, terms: Terms
) -> list[Judged]:
    """Every declared mark, and what was seen without a declaration."""
    rows: list[Judged] = []
    expected = [(m, mark) for m in mechanisms for mark in marks_of(m, update, terms)]
    noises = [mark for _, mark in expected if mark.kind == "noise"]
    for mechanism, mark in expected:
        later = [m.name for m in mechanisms[mechanisms.index(mechanism) + 1 :]]
        if mark.kind == "noise" and len(noises) > 1:
            mark = _sum_of(noises)
        observation = seen[mark.kind]
        ruling, reason = rule(mark, observation, later)
        rows.append(_row(mechanism.name, mark, update.client, observation, ruling, reason))
    for mechanism in mechanisms:
        if not any(mechanism is m for m, _ in expected):
            nothing = Observation(kind="none", state="unclear", updates=max(o.updates for o in seen.values()))
            mark = Mark(kind="none", setting="", value=None)
            reason = "its marks are not among those that this check reads"
            rows.append(_row(mechanism.name, mark, update.client, nothing, "cannot be told", reason))
    kinds = {mark.kind for _, mark in expected}
    for kind, one in seen.items():
        explained = kind in kinds or (kind == "largest" and "bits" in kinds)
        if one.state == "on" and not explained and not (kind == "norm" and "noise" in one.note):
            mark = Mark(kind=kind, setting=kind.replace("_", " "), value=None)
            rows.append(_row(_name(one), mark, update.client, one, "not declared", "it ran, but is not declared"))
    return rows


def _row(
    name: str, mark: Mark, client: int, seen: Observation, ruling: Ruling, reason: str
) -> Judged:
    declared = math.nan if mark.value is None else mark.value
    return Judged(
        defense=name, setting=mark.setting, declared=declared, client=client, seen=seen, ruling=ruling,
        reason=reason,
    )  # fmt: skip


def _name(seen: Observation) -> str:
    if seen.kind == "bits":
        return "sign" if seen.value == 1 else "quantise"
    return f"{seen.family} noise".strip() if seen.kind == "noise" else _NAMES[seen.kind]


def _sum_of(noises: Sequence[Mark]) -> Mark:
    """Independent noises add in squares."""
    values = [mark.value for mark in noises]
    total = None if None in values else math.sqrt(sum(v**2 for v in values if v is not None))
    return Mark(kind="noise", setting="std of all noise", value=total)


def rule(mark: Mark, seen: Observation, later: Sequence[str]) -> tuple[Ruling, str]:
    """How one mark compares with what was seen, and why; ``later`` are names of defences that act afterwards."""
    changed = [name for name in later if not (mark.kind == "norm" and "noise" in name)]
    if mark.kind in _SIZES:
        ruling, reason = _rule_size(mark, seen)
    elif seen.state == "unclear" or mark.value is None:
        return "cannot be told", seen.note or "the terms do not say what it must come to"
    elif seen.state == "off":
        ruling, reason = _rule_absent(mark, seen)
    elif seen.shows < seen.updates:
        ruling, reason = "partly", f"{seen.shows} of {seen.updates} updates show it"
    else:
        ruling, reason = _rule_strength(mark, seen)
    if changed and ruling in FAULTS:
        return "cannot be told", f"{', '.join(changed)} acts afterwards and changes its mark"
    return ruling, reason


def _rule_absent(mark: Mark, seen: Observation) -> tuple[Ruling, str]:
    assert mark.value is not None
    if mark.kind in ("zeros", "total_zeros") and mark.value < _CLOSE:
        return "cannot be told", "so small a share would not show"
    if mark.value <= seen.high:
        return "cannot be told", f"so little would not show: {seen.note}"
    return "off", seen.note


def _rule_strength(mark: Mark, seen: Observation) -> tuple[Ruling, str]:
    assert mark.value is not None
    slack = 0.0 if mark.kind == "bits" else _CLOSE * mark.value
    wide = (seen.high - seen.low) / 2  # twice the 95 % interval: one fault in 10,000 clean runs
    if not seen.low - wide - slack <= mark.value <= seen.high + wide + slack:
        ratio = seen.value / mark.value if mark.value else math.inf
        return "mis-set", f"{ratio:.3g} times what was declared"
    if mark.family and seen.family and mark.family != seen.family:
        return "mis-set", f"the noise looks {seen.family}, not {mark.family}"
    return "as declared", f"seen in {seen.shows} of {seen.updates} updates"


def _rule_size(mark: Mark, seen: Observation) -> tuple[Ruling, str]:
    """A bound must hold in every update; that it ever binds is what makes it a defence."""
    assert mark.value is not None
    low, high = seen.extremes
    hidden = math.isnan(high)
    if hidden or (seen.state == "unclear" and not high > mark.value * (1 + 1e-3)):
        return "cannot be told", seen.note
    blurred = "under the noise" in seen.note
    width = max((seen.high - seen.low) / 2 if blurred else 0.0, 1e-3 * mark.value)
    if seen.state == "on" and abs(seen.value - mark.value) <= 2 * width:
        if seen.shows < seen.updates:
            return "as declared", f"{seen.shows} of {seen.updates} updates reach it, none is above it"
        return "as declared", "every update reaches it"
    if seen.state == "on":
        return "mis-set", f"updates stop at {seen.value:.4g}, {seen.value / mark.value:.3g} times what was declared"
    if blurred:
        if seen.low > mark.value:
            return "off", f"the norm under the noise is about {seen.value:.3g}"
        if seen.high < mark.value:
            return "never binds", f"the norm under the noise is about {seen.value:.3g}"
        return "cannot be told", "the norm under the noise is near the bound, but not constant"
    if high > mark.value * (1 + 1e-3):
        above = "all updates are" if low > mark.value * (1 + 1e-3) else "some updates are"
        return "off", f"{above} above it, up to {high:.4g}"
    if high >= mark.value * (1 - 1e-3):
        return "as declared", "one update reaches it, none is above it"
    return "never binds", f"the largest update, {high:.4g}, is below it"
