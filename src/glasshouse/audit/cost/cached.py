"""Count work whose results an audit caches: done once per key over all of its scenarios."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, final

from glasshouse.audit.attacking.needs import declared, foresee_refusal
from glasshouse.audit.cost.rows import Row, make_row, untrained
from glasshouse.audit.cost.timings import Timer, Timings, Uses
from glasshouse.data.splits import ROLES, Role
from glasshouse.data.survey import Survey, survey
from glasshouse.errors import GlasshouseError
from glasshouse.scenario.axes import Cell
from glasshouse.scenario.requirements import passes, role_requests
from glasshouse.scenario.spec import Scenario

AFTERWARDS: Final = {"examples", "heldout", "images_are_public"}
"""Settings that do not change the images of other roles while the number of private images stays the same."""
READ: Final = {"source", "tokenizer", "length", "resize", "channels"}
"""Settings that determine what an image of the dataset looks like."""


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class CountedWork:
    """Keys of the work counted so far, which an audit's cache and plan do only once.

    Attributes:
        trained: keys of trainings before attacks, including public models.
        controls: keys of controls.
    """

    trained: set[str] = field(default_factory=set)
    controls: set[str] = field(default_factory=set)


@final
@dataclass(frozen=True, kw_only=True)
class Training:
    """One training that an attack needs before it runs.

    Attributes:
        what: the trained object, in words.
        steps: number of training steps.
        seconds: of all steps; None: not timed.
        estimated: the time is derived from another timing.
    """

    what: str
    steps: int
    seconds: float | None
    estimated: bool


def images_key(scenario: Scenario, seed: int, role: Role) -> object:
    """A key that is equal for scenarios and seeds in which ``role`` has the same images.

    A role that takes a whole split has the same images for every seed; one with a split of its own does not
    depend on the number of images of the others.
    """
    data, requests = scenario.data, role_requests(scenario)
    everything = [
        data.model_dump(exclude=AFTERWARDS),
        scenario.federation.clients * data.examples,
        seed,
    ]
    if data.domains.targets or role not in requests:
        return everything
    size, split, classes = requests[role]
    looks = [data.model_dump(include=READ), sorted(classes)]
    if size == _available_images(scenario, split, classes):
        return [looks, split, "all"]
    if data.private_source:
        del requests["private"]
    others = [
        requests[other][1] for other in ROLES if other in requests and ROLES.index(other) < ROLES.index(role)
    ]
    if data.deal == "image" and split and all(other and other != split for other in others):
        return [looks, split, size, sorted({s for _, s, _ in requests.values()}), seed]
    return everything


def _available_images(scenario: Scenario, split: str, classes: Sequence[int]) -> int | None:
    """Number of images available to a role; None: unknown before the data are read."""
    data = scenario.data
    try:
        available: Survey | None = survey(data.source, data.resize, data.channels)
    except GlasshouseError:
        return None
    if available is None:
        return None
    counts = available.counts.values() if not split else [available.counts.get(split, {})]
    return sum(n for some in counts for label, n in some.items() if not classes or label in classes)


def trainings(uses: Uses, timings: Timings, counted: CountedWork) -> Iterator[Training]:
    """Trainings before attacks that are not counted yet; charged to the first attack that needs them."""
    for (scenario, plugin), timing in zip(uses, timings, strict=True):
        budget = declared(plugin)[1]
        if budget is None or not budget.training or foresee_refusal(scenario, plugin) is not None:
            continue
        federation = scenario.federation
        steps = budget.training * (federation.rounds if budget.every_round else 1)
        behind: list[Any] = [budget.trained, steps, sorted(budget.recipe.items(), key=lambda pair: pair[0])]
        if "model" in budget.behind:
            behind.append(scenario.model.model_dump() if budget.every_round else untrained(scenario))
        if "sum" in budget.behind:
            behind.append(federation.cohort_size * federation.batch_size)
        if budget.every_round:
            behind += [federation.model_dump(), [d.model_dump() for d in scenario.defenses]]
            behind.append([scenario.data.model_dump(exclude=AFTERWARDS), scenario.data.examples])
        each = None if timing is None else timing.step
        for seed in scenario.audit.seeds or (scenario.seed,):
            whose = seed if budget.every_round else None
            key = repr([behind, images_key(scenario, seed, "auxiliary"), whose])
            if key not in counted.trained:
                counted.trained.add(key)
                yield Training(
                    what=budget.trained,
                    steps=steps,
                    seconds=None if each is None else each * steps,
                    estimated=timing is not None and timing.estimated,
                )


def training_rows(name: str, every: Sequence[Training], device: str) -> Iterator[Row]:
    """One row for each kind of training."""
    for what in dict.fromkeys(one.what for one in every):
        alike = [one for one in every if one.what == what]
        seconds = (
            None if any(one.seconds is None for one in alike) else sum(one.seconds or 0.0 for one in alike)
        )
        steps = ("steps", sum(one.steps for one in alike))
        row = make_row(name, f"training: {what}", len(alike), steps, seconds)
        yield {**row, "device": device, "estimated": any(one.estimated for one in alike)}


def pretraining_row(every: Sequence[Cell], timer: Timer | None, counted: CountedWork) -> Row:
    """The row for pre-training: cells and seeds with the same public model train it once."""
    counts = []
    for one in (cell.scenario for cell in every):
        for seed in one.audit.seeds or (one.seed,):
            key = repr(["public model", one.model.model_dump(), images_key(one, seed, "public"), seed])
            if key not in counted.trained:
                counted.trained.add(key)
                counts.append(passes(one))
    counts = [number for number in counts if number]
    first = next((c.scenario for c in every if c.scenario.model.pretraining.epochs), None)
    timing = None if timer is None or first is None else timer.pretraining(first)
    work = ("image passes", sum(counts))
    seconds = None if timing is None else timing.unit * sum(counts)
    row = make_row(every[0].scenario.name, "pre-training", len(counts), work, seconds)
    return {**row, "estimated": timing is not None and timing.estimated}
