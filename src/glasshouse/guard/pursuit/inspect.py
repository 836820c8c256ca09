"""Comparison of a received model with honest ones, by what fixed read-outs get of a client's own examples."""

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final, Literal, final

from torch import nn

from glasshouse.errors import BadValue
from glasshouse.guard.pursuit.examples import Own, check_fit
from glasshouse.guard.pursuit.found import COLUMNS, MEASURES, OF_ROUNDS, SINGLE, Found, Given, look, used
from glasshouse.guard.pursuit.groups import groups_of, stacked
from glasshouse.guard.pursuit.honest import (
    DRAWN,
    FEW,
    FRESH,
    LONGER,
    NOTHING,
    STEPS,
    Range,
    Ranges,
    learn,
    learn_rounds,
    least_used,
)
from glasshouse.guard.pursuit.limits import (
    COVERED,
    FEWEST,
    JUDGED,
    MARGIN,
    MARGIN_VISIBLE,
    OTHERS,
    SEARCHED,
)
from glasshouse.guard.pursuit.pulls import Pulls, pulls_of
from glasshouse.guard.pursuit.states import depends_on_others, in_mode, modes_of, steps_ahead, train_ahead
from glasshouse.wire import Inspection

NAME: Final = "pursuit"
Verdict = Literal["refused", "passed", "not judged"]


@final
@dataclass(frozen=True, kw_only=True)
class Judged:
    """What the pursuit says of a received model.

    Attributes:
        findings: a sentence for each limit that is exceeded.
        reason: why the model was not judged; empty: it was.
        coverage: what was looked at, in words.
        unseen: why a trainable tensor was not looked at, by name.
        values: the numbers behind.
        kept: modules whose values honest models could not draw anew.
    """

    findings: tuple[str, ...] = ()
    reason: str = ""
    coverage: str = ""
    unseen: Mapping[str, str] = field(default_factory=dict)
    values: Mapping[str, float] = field(default_factory=dict)
    kept: tuple[str, ...] = ()

    @property
    def verdict(self) -> Verdict:
        """``passed`` only if enough was looked at."""
        return "refused" if self.findings else "not judged" if self.reason else "passed"

    @property
    def is_in_doubt(self) -> bool:
        """Whether it was looked at, on enough examples, and could not be judged."""
        return bool(self.reason and self.coverage)

    @property
    def summary(self) -> str:
        """One sentence."""
        if self.reason:
            return f"Not judged: {self.reason} ({self.coverage or 'nothing was looked at'})."
        unseen = f"; not looked at: {', '.join(list(self.unseen)[:3])}" if self.unseen else ""
        return f"{self.verdict.capitalize()}: {self.coverage}{unseen}."

    @property
    def inspection(self) -> Inspection:
        """Findings and numbers."""
        return Inspection(guard=NAME, findings=self.findings, values=self.values)


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class HonestRanges:
    """Ranges of honest models, by mode, measured when they are first asked for.

    Attributes:
        measure: measures the range of models trained for some steps, in a mode.
        measure_rounds: measures what two rounds of some of them give away together, in a mode.
    """

    measure: Callable[[str, tuple[int, ...]], Ranges]
    measure_rounds: Callable[[str, int], Range]
    _known: dict[tuple[str, tuple[int, ...]], Ranges] = field(default_factory=dict)
    _rounds: dict[tuple[str, int], Range] = field(default_factory=dict)

    @classmethod
    def of(cls, model: nn.Module, own: Own) -> "HonestRanges":
        """Of the architecture of ``model``.

        Raises:
            BadValue: it cannot be trained on these examples.
        """
        kept = copy.deepcopy(model)
        check_fit(kept, own)
        return cls(
            measure=partial(_measure, kept, own),
            measure_rounds=lambda mode, models: learn_rounds(
                in_mode(kept, mode, own.inputs), own, models=models
            ),
        )

    def known(self, mode: str, steps: tuple[int, ...] = STEPS) -> Ranges:
        """The range in one mode."""
        if (mode, steps) not in self._known:
            self._known[mode, steps] = self.measure(mode, steps)
        return self._known[mode, steps]

    def rounds(self, mode: str, models: int) -> Range:
        """What two rounds of ``models`` honest models give away together in one mode."""
        if (mode, models) not in self._rounds:
            self._rounds[mode, models] = self.measure_rounds(mode, models)
        return self._rounds[mode, models]


def _measure(model: nn.Module, own: Own, mode: str, steps: tuple[int, ...]) -> Ranges:
    return learn(in_mode(model, mode, own.inputs), own, steps=steps)


def inspect_in_modes(
    model: nn.Module,
    own: Own,
    *,
    honest: HonestRanges,
    earlier: Sequence[nn.Module] = (),
    modes: Sequence[str] = (),
) -> Judged:
    """The first mode that is refused, else the first that is not judged, else that of training.

    Args:
        model: as received; not modified.
        own: the client's own examples: the first are searched, the next judged.
        honest: of the same architecture.
        earlier: accepted models of the last rounds, the newest first: the updates of each and of this one are
            judged as one, as examples may repeat.
        modes: in which clients use it; empty: all that differ.
    """
    judged = [_inspect(model, own, honest, earlier, mode) for mode in modes or modes_of(model, own)]
    order: dict[Verdict, int] = {"refused": 0, "not judged": 1, "passed": 2}
    return min(judged, key=lambda one: order[one.verdict])


def _inspect(
    model: nn.Module, own: Own, honest: HonestRanges, earlier: Sequence[nn.Module], mode: str
) -> Judged:
    if len(own) < FEWEST:
        return Judged(reason=f"{len(own)} examples are too few, {FEWEST} are needed")
    tried = own[: SEARCHED + JUDGED]
    one = in_mode(model, mode, own.inputs)
    pulls = pulls_of(one, tried)
    found = look(groups_of(pulls.sides), tried)
    ranges = _ranges_for(found, honest, mode)
    findings = [_sentence(f, ranges.of(f.names), tried) for f in found if _exceeds(f, ranges.of(f.names))]
    findings += _few(one, pulls, own, ranges)
    later: list[str] | None = [] if findings else _later(one, own, found, honest, mode)
    findings += later or []
    names = ", ".join(list(pulls.unseen)[:3])
    few = pulls.seen < COVERED
    reason = f"{names} could not be looked at: {next(iter(pulls.unseen.values()))}" if few else ""
    if not reason and later is None:
        reason = "training it on your examples leads to numbers that are not finite"
    values = _values(found, ranges, pulls)
    for rounds, past in enumerate(earlier, 1):
        before = pulls_of(in_mode(past, mode, own.inputs), tried)
        both = look(stacked(before, pulls, rounds=rounds), tried, searches=OF_ROUNDS)
        pairs = NOTHING
        # Pairs of honest models take long to measure: only as many as are needed to tell.
        for models in (FEW, FRESH):
            if any(_exceeds(f, pairs) for f in both):
                pairs = honest.rounds(mode, models)
        findings += [_sentence(f, pairs, tried) for f in both if _exceeds(f, pairs)]
        together = (max(f.given.excess, f.given.crowds) for f in both)
        values["rounds_excess"] = max([values.get("rounds_excess", 0.0), *together])
    if not findings and ranges.buffers:
        # Values that nobody can draw anew may be a design: then nothing is said, for better or worse.
        drawn = honest.known(mode, (DRAWN,))
        doubtful = [f for f in found if drawn.tensors and _exceeds(f, drawn.of(f.names))]
        reason = _kept_in_doubt(doubtful, ranges) if doubtful else ""
    if not reason and depends_on_others(one, tried):
        reason = "what it answers for one example depends on the others of a batch"
    return Judged(
        findings=tuple(findings),
        reason=reason,
        coverage=pulls.coverage,
        unseen=pulls.unseen,
        values=values,
        kept=ranges.kept,
    )


def _ranges_for(found: Sequence[Found], honest: HonestRanges, mode: str) -> Ranges:
    """The ranges of honest models that ``found`` is compared with."""
    ranges = honest.known(mode)
    # Single rows and columns of models that are trained for long may isolate more: measured where it matters.
    if any(_exceeds(f, ranges.of(f.names), SINGLE) for f in found):
        ranges = ranges.widened(honest.known(mode, LONGER))
    return ranges


def _later(
    model: nn.Module, own: Own, before: Sequence[Found], honest: HonestRanges, mode: str
) -> list[str] | None:
    """What opens in ``model`` as own training leaves it; None: nobody can train it.

    Args:
        model: in which nothing was found.
        own: the client's examples.
        before: what was found in it as it came.
        honest: of the same architecture.
        mode: in which it is trained.
    """
    tried = own[: SEARCHED + JUDGED]
    ahead = train_ahead(model, tried)
    if ahead is None:
        return None
    try:
        pulls = pulls_of(ahead, tried)
    except BadValue:  # it overflows now, and did not when it came
        return None
    found = look(groups_of(pulls.sides), tried)
    ranges = _ranges_for(found, honest, mode)
    opened = [f for f in found if _opened(f, before, ranges.of(f.names))]
    start = f"after {steps_ahead(tried)} steps of training on your examples, "
    return [start + _sentence(f, ranges.of(f.names), tried) for f in opened]


def _opened(later: Found, before: Sequence[Found], honest: Range) -> bool:
    """Whether a group gives away more than it did, and than honest models do, by a margin over both.

    The margin is added once more because a second look at a model is a second chance of a false alarm.
    """
    limits = honest.limits_of(later.given)
    same = [f.given for f in before if set(f.names) & set(later.names)]

    def is_beyond(measure: str) -> bool:
        margin = MARGIN_VISIBLE if measure.endswith("visible") else MARGIN
        usual = max(getattr(one, measure) for one in (limits, *same))
        return bool(getattr(later.given, measure) > usual + margin)

    return any(is_beyond(measure) for measure in MEASURES)


def _exceeds(found: Found, honest: Range, measures: Sequence[str] = MEASURES) -> bool:
    limits = honest.limits_of(found.given)
    return any(getattr(found.given, m) > getattr(limits, m) + 1e-9 for m in measures)


def _sentence(found: Found, honest: Range, own: Own) -> str:
    """What a person should know: where, how many, of how many, and what honest models show."""
    limits = honest.limits_of(found.given)
    # Told by the measure that exceeds its limit by most.
    measure = max(MEASURES, key=lambda m: getattr(found.given, m) - getattr(limits, m))
    batch = min(64, len(own) if measure.startswith("rows") else len(own) // 2)
    seen, usual = (round(batch * getattr(one, measure)) for one in (found.given, honest.most))
    where = " and ".join(found.names[:2]) + (
        f" and {len(found.names) - 2} more" if len(found.names) > 2 else ""
    )
    blurred = ", blurred" if measure.endswith("visible") else ""
    if measure.startswith("rows"):
        return (
            f"single rows of {where} would give away {seen} of {batch} of your examples, each alone{blurred} "
            f"(honest models: up to {usual})"
        )
    if measure in COLUMNS:
        what, count = measure.split("_")[:2]
        rows = ", in some row or combination of rows" * (what == "cells")
        return (
            f"{seen} of {batch} of your examples would each fill {count} columns or more of {where} alone"
            f"{rows}{blurred} (honest models: up to {usual})"
        )
    direction = f"one direction of {found.rows} rows alone does in {found.hits:.0%} of the batches; " * (
        found.hits > 0.05
    )
    return (
        f"fixed combinations of rows of {where} would give away {seen} of {batch} of your examples{blurred} "
        f"beyond what single rows do ({direction}honest models: up to {usual})"
    )


def _kept_in_doubt(found: Sequence[Found], ranges: Ranges) -> str:
    where = ", ".join(dict.fromkeys(name for one in found for name in one.names[:1]))
    return (
        f"what {where} gives away is usual only beside models with the same buffers "
        f"({', '.join(ranges.buffers)}), which honest ones could not draw anew"
    )


def _few(model: nn.Module, pulls: Pulls, own: Own, ranges: Ranges) -> list[str]:
    """A finding if few examples make up the update of a tensor; where they seem to, others are tried too."""

    def suspects(lengths: Mapping[str, object]) -> list[str]:
        return [n for n, t in lengths.items() if 0 < used(t) < least_used(ranges, n)]  # type: ignore[arg-type]  # lengths by name

    # By chance few of these examples may weigh most; a server's design does so with further ones, too.
    few = suspects(pulls.lengths)
    rest = own[SEARCHED + JUDGED : SEARCHED + JUDGED + OTHERS]
    if few and len(rest) >= FEWEST:
        more = pulls_of(model, own[: SEARCHED + JUDGED + OTHERS]).lengths
        few = [name for name in suspects(more) if name in few]
        shares = {name: used(more[name]) for name in few}
    else:
        shares = {name: used(pulls.lengths[name]) for name in few}
    if not few:
        return []
    worst = min(few, key=lambda name: shares[name] / ranges.used[name])
    sentence = (
        f"the update of {worst} would be as if only {shares[worst]:.0%} of your examples had been used "
        f"(honest models: at least {ranges.used[worst]:.0%})"
    )
    return [sentence]


def _limits(found: Found, ranges: Ranges) -> Given:
    return ranges.of(found.names).limits_of(found.given)


def _values(found: Sequence[Found], ranges: Ranges, pulls: Pulls) -> dict[str, float]:
    """The largest value of each measure with its limit, where they are closest; and what was looked at."""
    values: dict[str, float] = {}
    for m in MEASURES:
        margins = [(getattr(f.given, m) - getattr(_limits(f, ranges), m), f) for f in found]
        if margins:
            _, worst = max(margins, key=lambda pair: pair[0])
            values[m] = getattr(worst.given, m)
            values[f"{m}_limit"] = getattr(_limits(worst, ranges), m)
    reached = {n: used(t) for n, t in pulls.lengths.items()}
    values["used"] = min((share for share in reached.values() if share), default=0.0)
    values["unreached"] = float(sum(not s and ranges.used.get(n, 0) > 0 for n, s in reached.items()))
    values |= {"tensors": float(pulls.total), "unseen": float(len(pulls.unseen)), "seen": pulls.seen}
    values["tried"] = float(len(next(iter(pulls.lengths.values()), ())))
    return values
