"""``attacks = "auto"``: the strongest attacks that apply to a federation, within a budget, in a fixed order.

Attacks say of themselves what they need, with which settings they may be chosen, and how strong each was
measured to be (``Card.offers``); no attack is named here. Costs are counted for a fixed reference core, so
that the same scenario gets the same attacks on every machine.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Final, cast, final

from glasshouse import registry
from glasshouse.attacks.base import Claim
from glasshouse.audit.attacking.needs import calls_of, plays_of, refusal_of
from glasshouse.audit.count import Cost, Speed, Use, cost_of, foresee, magnitude, numbers_in, score_cost
from glasshouse.audit.preflight.inspect import refusal_in
from glasshouse.audit.preflight.outlook import Outlook, look
from glasshouse.audit.scoring.pair import can_score
from glasshouse.errors import GlasshouseError
from glasshouse.metrics.base import Metric
from glasshouse.registry import Offer
from glasshouse.scenario.axes import cells
from glasshouse.scenario.defaults import Chosen
from glasshouse.scenario.spec import Scenario
from glasshouse.scenario.table import Plugin

REFERENCE: Final = Speed(operations=2.5e10, operators=2e4)
"""One core of a usual server, as ``count.measure_speed`` measured it in 2026."""
METRICS: Final = 4
"""Number of metrics that score an attack where the scenario leaves them out."""


@final
@dataclass(frozen=True, kw_only=True)
class Candidate:
    """One attack at one effort, in the cells that do not rule it out.

    Attributes:
        plugin: the attack with its settings.
        strength: as its card declares it.
        seconds: of the reference core, over all cells, with controls, training and scores.
    """

    plugin: Plugin
    strength: float
    seconds: float


def choose(scenario: Scenario, *, scored: bool) -> Chosen:
    """The attacks for a scenario that names none, and in sentences how they were chosen.

    Args:
        scenario: without attacks.
        scored: its metrics were asked for, so that only attacks that one of them scores are of use.
    """
    every = [look(cell.scenario) for cell in cells(scenario)]
    offered: dict[str, list[Candidate]] = {}
    left: dict[str, list[str]] = {}
    for name in registry.names("attacks"):
        found, reason = _candidates(name, every, scenario if scored else None)
        for one in found:
            offered.setdefault(one.plugin.label or name, []).append(one)
        if not found:
            left.setdefault(reason, []).append(name)

    # Everybody gets the least effort while the budget lasts, the strongest attack first ...
    order = sorted(offered, key=lambda name: (-max(c.strength for c in offered[name]), name))
    remaining, taken = scenario.audit.seconds, dict[str, Candidate]()
    for name in order:
        least = min(offered[name], key=attrgetter("seconds"))
        if least.seconds <= remaining:
            taken[name] = least
            remaining -= least.seconds
        else:
            reason = f"takes {magnitude(least.seconds)} at its least effort, more than is left of the budget"
            left.setdefault(reason, []).append(name)
    # ... and what is left of it raises efforts in the same order.
    for name in [one for one in order if one in taken]:
        now = taken[name]
        stronger = [c for c in offered[name] if c.strength > now.strength]
        for candidate in sorted(stronger, key=attrgetter("strength"), reverse=True):
            if candidate.seconds - now.seconds <= remaining:
                remaining -= candidate.seconds - now.seconds
                taken[name] = candidate
                break
    chosen = [taken[name] for name in order if name in taken]
    return Chosen(
        attacks=tuple(one.plugin.model_dump() for one in chosen),
        notes=tuple(_notes(chosen, left, scenario.audit.budget)),
    )


def _candidates(name: str, every: Sequence[Outlook], asked: Scenario | None) -> tuple[list[Candidate], str]:
    """The efforts at which an attack can run in some cell; or none, and the reason."""
    try:
        card = registry.card("attacks", name)
    except GlasshouseError as error:
        return [], f"needs {error.needs}; got {error.got}"
    if not card.offers:
        return [], "declares no measured strength: name it to run it"
    if asked is not None and not _is_scored(card.claims, asked):
        return [], "claims nothing that audit.metrics score"
    found, reason = [], "needs what this federation does not have"
    for offer in card.offers:
        uses: list[Use] = []
        for one in every:
            plugin = _plugin(name, offer, one.scenario)
            if plugin is None:
                continue
            try:
                refusal = refusal_in(one, plugin)
            except GlasshouseError as error:  # such as no property of a behaviour's name
                refusal = refusal_of(error)
            if refusal is None:
                uses.append((foresee(one), plugin))
            else:
                reason = f"needs {refusal.needs}; got {refusal.got}"
        if uses:
            calls, scores = 0, Cost()
            for used, plugin in uses:
                number = calls_of(used.scenario, plugin)
                calls += number * plays_of(used.scenario, plugin)
                metrics = len(used.scenario.audit.metrics) or METRICS
                scores += score_cost(used.scenario, numbers_in(used.network, name)).times(number * metrics)
            seconds = (cost_of(uses) + scores).seconds(REFERENCE) + calls * offer.seconds
            found.append(Candidate(plugin=uses[0][1], strength=offer.strength, seconds=seconds))
    return found, reason


def _plugin(name: str, offer: Offer, scenario: Scenario) -> Plugin | None:
    """An attack at an effort; None: an argument that the scenario is to fill has nothing there."""
    filled = {}
    for argument, path in offer.fills.items():
        entries = attrgetter(path)(scenario)
        if not entries:
            return None
        filled[argument] = entries[0].name
    label = {"label": f"{name} ({offer.variant})"} if offer.variant else {}
    return Plugin.model_validate({"name": name, **label, **offer.settings, **filled})


def _is_scored(claims: Sequence[str], scenario: Scenario) -> bool:
    """Whether a metric that was asked for scores a claim of these kinds."""
    kinds = [cast("type[Claim]", registry.load("claims", kind)) for kind in claims]
    for plugin in scenario.audit.metrics:
        metric: Metric = registry.create(registry.load("metrics", plugin.name), plugin.arguments)
        if any(can_score(kind, metric) for kind in kinds):
            return True
    return False


def _notes(chosen: Sequence[Candidate], left: dict[str, list[str]], budget: str) -> Iterator[str]:
    """What was chosen, in order, and what was left out and why."""
    yield (
        'The attacks were chosen by attacks = "auto": those that this federation does not rule out, the '
        f"strongest first, within {budget} of one core for attacks, controls, their training and all scores."
    )
    for number, one in enumerate(chosen, start=1):
        settings = ", ".join(f"{key} = {value}" for key, value in one.plugin.arguments.items())
        effort = f" with {settings}" if settings else ""
        yield (
            f"{number}. {one.plugin.label or one.plugin.name}{effort}: measured strength {one.strength:.2f}, "
            f"{magnitude(one.seconds)}."
        )
    for reason, names in sorted(left.items(), key=lambda item: item[1]):
        yield f"Left out: {', '.join(names)}: {reason}."
