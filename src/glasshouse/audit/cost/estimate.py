"""Estimate the cost of an audit before it starts: counts of its work, and seconds if measured."""

from collections.abc import Iterable, Mapping, Sequence

from glasshouse.audit.attacking.needs import calls_of, declared
from glasshouse.audit.cost.cached import CountedWork, Training, pretraining_row, training_rows, trainings
from glasshouse.audit.cost.controls import Easy, controls_row, time_controls
from glasshouse.audit.cost.rows import Row, attacked_rounds, make_row, repeats, units_in
from glasshouse.audit.cost.timings import CLOSED_FORM, Known, Timer, Timings, Uses, time_uses
from glasshouse.audit.scoring.rehearsal import Scoring
from glasshouse.audit.simulation.deal import remember_data
from glasshouse.audit.simulation.group import federation_digest
from glasshouse.audit.simulation.rehearsal import Played, client_passes, without_timed_defenses
from glasshouse.scenario.axes import Cell, cells
from glasshouse.scenario.spec import Scenario
from glasshouse.scenario.suite import Suite
from glasshouse.scenario.table import Plugin

CONTROL_VICTIMS = 6
"""Number of victims of a control: the clients in its easy setting."""


def costs(suite: Suite, *, timer: Timer | None = None) -> list[Row]:
    """The rows of every scenario and one total; work shared by scenarios through the cache counts once."""
    counted, known = CountedWork(), Known(timer)
    with remember_data():
        rows = [row for scenario in suite.scenarios for row in cost(scenario, known, counted)]
    return [*rows, total(suite.name, rows)]


def cost(scenario: Scenario, known: Known, counted: CountedWork) -> list[Row]:
    """The rows of one scenario, over all of its cells and seeds; no total.

    Timed first: a federation, each attack once, scoring; then other settings.
    """
    every, timer = cells(scenario), known.timer
    device = "cpu" if timer is None else timer.device
    first = {} if timer is None else _played([every[0].scenario], [], timer, {})
    rows, controls, trained = [pretraining_row(every, timer, counted)], list[Easy](), list[Training]()
    labels = _by_label(every)
    firsts = [uses[0] for uses in labels.values()]
    names = [plugin.name for _, plugin in firsts]
    for number in sorted(
        range(len(names)), key=lambda n: (names[n] in names[:n], n)
    ):  # each attack, each label
        known.timing(*firsts[number], first=True)
    scoring = None if timer is None else timer.scoring(every[0].scenario)
    for label, uses in labels.items():
        timings = time_uses(uses, known)
        easy = time_controls(uses, timings, known, counted)
        estimated = any(timing is not None and timing.estimated for timing in timings)
        on_device = (
            {**_attack(scenario.name, label, uses, timings), "estimated": estimated},
            {**_crafting(scenario.name, label, uses, timings), "estimated": estimated},
            controls_row(scenario.name, label, easy),
            {**_certificates(scenario.name, label, uses, timings), "estimated": estimated},
        )
        rows += [{**row, "device": device} for row in on_device]
        controls += easy
        trained += trainings(uses, timings, counted)
        trained += trainings([(o.scenario, o.plugin) for o in easy], [o.timing for o in easy], counted)
    rows += training_rows(scenario.name, trained, device)
    rows[1:1] = _simulation(every, [one.scenario for one in controls], timer, first)
    rows += _scoring(every, len(controls), scoring)
    return [row for row in rows if row["calls"]]


def total(name: str, rows: Sequence[Row]) -> Row:
    """The total of calls and seconds; ``unmeasured`` names the parts without a timing, which it excludes."""
    seconds = [row for row in rows if row["seconds"] is not None]
    devices: dict[str, float] = {}
    for one in seconds:
        devices[one["device"]] = devices.get(one["device"], 0.0) + one["seconds"]
    calls = sum(row["calls"] for row in rows)
    row = make_row(name, "total", calls, ("", None), sum(devices.values()) if seconds else None)
    unmeasured = dict.fromkeys(row["part"] for row in rows if row["seconds"] is None)
    estimated = dict.fromkeys(row["part"] for row in seconds if row.get("estimated"))
    parts = {"unmeasured": list(unmeasured) if seconds else [], "estimated": list(estimated)}
    return {**row, "devices": devices, **parts}


def _by_label(every: Sequence[Cell]) -> dict[str, list[tuple[Scenario, Plugin]]]:
    """The cells in which each attack runs, by label; axes may change its arguments or the list of attacks."""
    uses: dict[str, list[tuple[Scenario, Plugin]]] = {}
    for cell in every:
        for plugin in cell.scenario.attacks:
            uses.setdefault(plugin.label or plugin.name, []).append((cell.scenario, plugin))
    return uses


def _attack(name: str, label: str, uses: Uses, timings: Timings) -> Row:
    calls = work = 0
    unit, seconds = "evaluations", 0.0
    for (scenario, plugin), timing in zip(uses, timings, strict=True):
        budget, count = declared(plugin)[1] or CLOSED_FORM, calls_of(scenario, plugin) * repeats(scenario)
        units = units_in(scenario, budget, count)
        calls, work = calls + count, work + units
        unit = budget.unit if budget.amount else "evaluations"
        seconds += units * timing.unit + count * timing.call if timing is not None else 0.0
    return make_row(name, label, calls, (unit, work), seconds if any(timings) else None)


def _crafting(name: str, label: str, uses: Uses, timings: Timings) -> Row:
    """The row for crafting by a malicious server before every attacked round; no calls if all are passive."""
    calls, seconds = 0, 0.0
    for (scenario, _), timing in zip(uses, timings, strict=True):
        if timing is not None and timing.crafting:
            count = attacked_rounds(scenario) * repeats(scenario)
            calls, seconds = calls + count, seconds + count * timing.crafting
    return make_row(name, f"crafting: {label}", calls, ("rounds", calls), seconds)


def _certificates(name: str, label: str, uses: Uses, timings: Timings) -> Row:
    """The row for certifying each search once at the ground truth; no calls if that takes no time."""
    calls, seconds = 0, 0.0
    for (scenario, plugin), timing in zip(uses, timings, strict=True):
        if timing is not None and timing.certificate:
            count = calls_of(scenario, plugin) * repeats(scenario)
            calls, seconds = calls + count, seconds + count * timing.certificate
    return make_row(name, f"certificates: {label}", calls, ("searches", calls), seconds)


def _played(
    cells: Iterable[Scenario], easy: Iterable[Scenario], timer: Timer, known: Mapping[str, Played]
) -> dict[str, Played]:
    """Timed federations by digest; without time left, cells use the first one. Controls are always timed.

    Federations that differ in their defences at gradients share one timing, to which those are added. In
    logit protocols each client, and the server, takes the time of one party.
    """
    played, parties = dict(known), dict[str, int]()
    for one, small in (*((s, False) for s in cells), *((s, True) for s in easy)):
        plain = without_timed_defenses(one)
        key, first = federation_digest(plain), next(iter(played), None)
        parties[key] = plain.federation.clients + 1 if plain.federation.kind == "logits" else 1
        if federation_digest(one) in played:
            continue
        if key not in played and first is not None and timer.exhausted and not small:
            played[key] = played[first].times(parties[key] / parties.get(first, parties[key]))
        elif key not in played:
            played[key] = timer.simulation(plain, cold=first is None)
        if len(plain.defenses) < len(one.defenses):
            seconds = one.federation.cohort_size * timer.defenses(one)
            played[federation_digest(one)] = played[key].slowed(seconds)
    return played


def _simulation(
    every: Sequence[Cell], easy: Sequence[Scenario], timer: Timer | None, known: Mapping[str, Played]
) -> list[Row]:
    """The rows for simulations: per federation and seed one for all passive attacks, one per active attack.

    Then those of the controls; passive attacks with the same easy setting share one.
    """
    groups, played = list[tuple[Scenario, int]](), set[str]()
    for one in (cell.scenario for cell in every):
        active = sum(bool(declared(a)[0].changes) for a in one.attacks)
        passive = {federation_digest(one)} - played if active < len(one.attacks) else set()
        groups.append((one, (active + len(passive)) * repeats(one)))
        played |= set() if one.captured else passive
    of_controls = [(one, 1) for one in {federation_digest(s): s for s in easy}.values()]
    cells = (one for one, _ in groups)
    timed = {} if timer is None else _played(cells, (one for one, _ in of_controls), timer, known)
    rows: list[Row] = []
    for part, counted in (("simulation", groups), ("simulation for controls", of_controls)):
        calls = sum(times for _, times in counted)
        work = sum(times * client_passes(one) for one, times in counted)
        seconds = None if rows or timer is None else next(iter(timed.values())).first
        estimated = False
        for one, times in counted if timed else ():
            each = timed[federation_digest(one)]
            seconds = (seconds or 0.0) + times * each.of(one.federation.rounds)
            estimated = estimated or each.estimated
        row = make_row(every[0].scenario.name, part, calls, ("image passes", work), seconds)
        rows.append({**row, "estimated": estimated})
    return rows


def _scoring(every: Sequence[Cell], controls: int, timed: Scoring | None) -> list[Row]:
    """The rows for scoring every claim with every metric, including nulls and exchanged victims.

    A control is scored by one metric on the claims and on the exchanged claims.
    """
    first, counts = every[0].scenario, {True: [0, 0], False: [0, 0]}  # federations and scores, by new nulls
    nulls = set[str]()
    for one in (cell.scenario for cell in every):
        undefended = federation_digest(one.model_copy(update={"defenses": ()}))
        for plugin in one.attacks:
            claims = calls_of(one, plugin)
            for place, number in enumerate((bool(claims), claims)):
                counts[undefended not in nulls][place] += number * repeats(one) * len(one.audit.metrics)
        nulls.add(undefended)
    easy, calls = [controls, 2 * CONTROL_VICTIMS * controls], counts[True][1] + counts[False][1]
    rows: list[Row] = []
    for part, scores, new in (("scoring", calls, counts[True]), ("scoring of controls", easy[1], easy)):
        seconds = None if timed is None else timed.of(*new)
        if timed is not None and not rows:
            seconds = timed.of(*new) + timed.first + timed.of(*counts[False], known=True)
        row = make_row(first.name, part, scores, ("scores", scores), seconds)
        rows.append({**row, "estimated": timed is not None and timed.estimated})
    return rows
