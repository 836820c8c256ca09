"""The marks that a declared defence must leave in updates, compared with the observed ones."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Final, Literal, final

from glasshouse.audit import guarded
from glasshouse.audit.defenses.observe import Observation, unclear
from glasshouse.errors import GlasshouseError
from glasshouse.federation.defenses.marks import Mark
from glasshouse.registry import load, names
from glasshouse.wire import Mechanism, Refusal, Terms, Update

Ruling = Literal["as declared", "off", "mis-set", "never binds", "partly", "cannot be told", "not declared"]

FAULTS: Final = frozenset({"off", "mis-set", "never binds", "partly"})
"""Rulings that a defence does not do what was declared."""
_CLOSE: Final = 0.05
_BLURRED: Final = "under the noise"
_SHARES: Final = ("zeros", "total_zeros")
_SIZES: Final = ("norm", "tensor_norm", "largest")


@final
@dataclass(frozen=True, kw_only=True)
class Judged:
    """The ruling on one mark of one defence at one client.

    Attributes:
        defense: registered name, or a description of what was observed without a declaration.
        setting: the quantity compared.
        declared: its declared value; NaN: none.
        client: the client of the updates; None: the server's own steps.
        observation: what the updates show.
        ruling: how the two compare.
        reason: one sentence.
    """

    defense: str
    setting: str
    declared: float
    client: int | None
    observation: Observation
    ruling: Ruling
    reason: str


def marks_of(mechanism: Mechanism, update: Update, terms: Terms) -> tuple[Mark, ...]:
    """The marks that ``mechanism`` must leave in ``update``; empty if it leaves none that can be checked."""
    if mechanism.name not in names("defenses"):
        return ()
    # A defence of another package need not say how it shows.
    says = getattr(load("defenses", mechanism.name), "marks", None)
    if says is None:
        return ()
    marks = guarded.call(
        "defense",
        mechanism.name,
        lambda: tuple(says(mechanism.parameters, update, terms)),
        about="in its marks",
    )
    return () if isinstance(marks, Refusal) else marks


def judge(
    mechanisms: Sequence[Mechanism], observations: Mapping[str, Observation], update: Update, terms: Terms
) -> list[Judged]:
    """Rule on every declared mark at the client of ``update``, and on observations without a declaration."""
    rows: list[Judged] = []

    def add(name: str, mark: Mark, one: Observation, ruling: Ruling, reason: str) -> None:
        declared = math.nan if mark.value is None else mark.value
        row = Judged(
            defense=name, setting=mark.setting, declared=declared, client=update.client, observation=one,
            ruling=ruling, reason=reason,
        )  # fmt: skip
        rows.append(row)

    marks = [marks_of(mechanism, update, terms) for mechanism in mechanisms]
    noises = [mark for each in marks for mark in each if mark.kind == "noise"]
    for position, (mechanism, each) in enumerate(zip(mechanisms, marks, strict=True)):
        later = [m.name for m in mechanisms[position + 1 :]]
        for mark in each:
            expected = _sum_of(noises) if mark.kind == "noise" and len(noises) > 1 else mark
            seen = observations[mark.kind]
            add(mechanism.name, expected, seen, *rule(expected, seen, later))
        if not each:
            unread = unclear("none", observations["norm"].updates, "")
            reason = "its marks are not among those that this check reads"
            add(mechanism.name, Mark(kind="none", setting="", value=None), unread, "cannot be told", reason)
    explained = {mark.kind for each in marks for mark in each}
    if _BLURRED in observations["norm"].note or any(
        observations[kind].state == "on" for kind in ("tensor_norm", "largest")
    ):
        explained.add("norm")  # these bounds may fix the norm as well
    for kind, one in observations.items():
        if one.state == "on" and kind not in explained:
            mark = Mark(kind=kind, setting=kind.replace("_", " "), value=None)
            add(_name(one), mark, one, "not declared", "it ran, but is not declared")
    return rows


def _name(observation: Observation) -> str:
    """What an undeclared defence is called: as the registered one that shows so."""
    if observation.kind == "noise":
        return f"{observation.family} noise".strip()
    kind = "one bit" if observation.kind == "bits" and observation.value == 1 else observation.kind
    return _names_by_mark().get(kind, kind.replace("_", " "))


@cache
def _names_by_mark() -> dict[str, str]:
    """Registered defences by the mark that shows them; those whose extra is missing are left out."""
    named: dict[str, str] = {}
    for name in names("defenses"):
        try:
            kind = getattr(load("defenses", name), "shown_by", "")
        except GlasshouseError:
            continue
        if kind:
            named.setdefault(kind, name)
    return named


def _sum_of(noises: Sequence[Mark]) -> Mark:
    """The mark of all noises together: variances of independent noises add."""
    values = [mark.value for mark in noises]
    total = None if None in values else math.sqrt(sum(v**2 for v in values if v is not None))
    return Mark(kind="noise", setting="std of all noise", value=total)


def rule(mark: Mark, observation: Observation, later: Sequence[str]) -> tuple[Ruling, str]:
    """Compare one mark with the observation of its kind; returns the ruling and its reason.

    Args:
        mark: what a declared defence must leave.
        observation: of the same kind.
        later: names of the defences that act afterwards.
    """
    changed = [name for name in later if not (mark.kind == "norm" and "noise" in name)]
    has_fewer = mark.kind in _SHARES and observation.state != "on" and (mark.value or 0) > observation.high
    if mark.kind in _SIZES:
        ruling, reason = _rule_size(mark, observation)
    elif has_fewer:
        ruling, reason = "off", f"some update has no more zeros than a share of {observation.high:.2g} leaves"
    elif observation.state == "unclear" or mark.value is None:
        return "cannot be told", observation.note or "the terms do not say what it must come to"
    elif observation.state == "off":
        ruling, reason = _rule_absent(mark, observation)
    elif observation.shows < observation.updates:
        ruling, reason = "partly", f"{observation.shows} of {observation.updates} updates show it"
    else:
        ruling, reason = _rule_strength(mark, observation)
    if changed and ruling in FAULTS:
        return "cannot be told", f"{', '.join(changed)} acts afterwards and changes its mark"
    return ruling, reason


def _rule_absent(mark: Mark, observation: Observation) -> tuple[Ruling, str]:
    assert mark.value is not None
    if mark.kind in _SHARES and mark.value < _CLOSE:
        return "cannot be told", "so small a share would not show"
    if mark.value <= observation.high:
        return "cannot be told", f"so little would not show: {observation.note}"
    return "off", observation.note


def _rule_strength(mark: Mark, observation: Observation) -> tuple[Ruling, str]:
    assert mark.value is not None
    slack = 0.0 if mark.kind == "bits" else _CLOSE * mark.value
    wide = (observation.high - observation.low) / 2  # twice the 95 % interval: one fault in 10,000 clean runs
    if not observation.low - wide - slack <= mark.value <= observation.high + wide + slack:
        ratio = observation.value / mark.value if mark.value else math.inf
        return "mis-set", f"{ratio:.3g} times what was declared"
    if mark.family and observation.family and mark.family != observation.family:
        return "mis-set", f"the noise looks {observation.family}, not {mark.family}"
    return "as declared", f"seen in {observation.shows} of {observation.updates} updates"


def _rule_size(mark: Mark, observation: Observation) -> tuple[Ruling, str]:
    """Rule on a bound: it must hold in every update, and must be reached to count as a defence."""
    assert mark.value is not None
    low, high = observation.extremes
    # Updates that may be below the bound by chance prove nothing.
    hidden = math.isnan(high)
    if hidden or (observation.state == "unclear" and not high > mark.value * (1 + 1e-3)):
        return "cannot be told", observation.note
    blurred = _BLURRED in observation.note
    # How far off a bound may be seen: a thousandth, or what the noise on the norm leaves open.
    width = max((observation.high - observation.low) / 2 if blurred else 0.0, 1e-3 * mark.value)
    if observation.state == "on" and abs(observation.value - mark.value) <= 2 * width:
        if observation.shows < observation.updates:
            share = f"{observation.shows} of {observation.updates} updates"
            return "as declared", f"{share} reach it, none is above it"
        return "as declared", "every update reaches it"
    if observation.state == "on":
        ratio = observation.value / mark.value
        return "mis-set", f"updates stop at {observation.value:.4g}, {ratio:.3g} times what was declared"
    # Noise was added after the clip: only the norm below it can be compared.
    if blurred:
        if observation.low > mark.value:
            return "off", f"the norm under the noise is about {observation.value:.3g}"
        if observation.high < mark.value:
            return "never binds", f"the norm under the noise is about {observation.value:.3g}"
        return "cannot be told", "the norm under the noise is near the bound, but not constant"
    # No common bound shows; single norms still tell whether this one could be in force.
    if high > mark.value * (1 + 1e-3):
        above = "all updates are" if low > mark.value * (1 + 1e-3) else "some updates are"
        return "off", f"{above} above it, up to {high:.4g}"
    if high >= mark.value * (1 - 1e-3):
        return "as declared", "one update reaches it, none is above it"
    return "never binds", f"the largest update, {high:.4g}, is below it"
