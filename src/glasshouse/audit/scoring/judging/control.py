"""Positive and negative controls of attacks.

The positive control is an easy setting named by the attack's card (no defence, a model that leaks). The
attack runs there with exactly its settings in the audit: if they are too weak for the easy case, the control
fails and the audit reports "no power". The negative control scores the same claims against another victim's
examples: an update unrelated to the victim. Both are small, run on the built-in digits unless the card names
other data, and are cached (decision 0086).
"""

import shutil
from collections.abc import Iterator, Mapping
from copy import deepcopy
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Final, final

from filelock import FileLock

from glasshouse.audit.attacking.call import AttackTask, pieces, run_piece, units_of
from glasshouse.audit.attacking.claims import Outcome, read_outcome
from glasshouse.audit.attacking.isolation import call_plugin
from glasshouse.audit.attacking.needs import attack_of, threat_of
from glasshouse.audit.provenance.sources import sources_digest
from glasshouse.audit.scoring.gains import gain_of
from glasshouse.audit.scoring.nulls import claim_of
from glasshouse.audit.scoring.read import read_ground
from glasshouse.audit.scoring.score import score_outcomes
from glasshouse.audit.scoring.truth import exchange_classes, rotate_victims
from glasshouse.audit.simulation.group import Group, federation_digest, simulate
from glasshouse.audit.simulation.record import has_record
from glasshouse.cache import digest
from glasshouse.cache import folder as cache_folder
from glasshouse.errors import BadScenario, BadValue, GlasshouseError, Inapplicable, Undefined
from glasshouse.metrics.base import Metric
from glasshouse.registry import card, load
from glasshouse.results.records import Control
from glasshouse.rng import Rng
from glasshouse.scenario.load import from_dict, write_resolved
from glasshouse.scenario.overrides import assign
from glasshouse.scenario.spec import Scenario
from glasshouse.scenario.table import Plugin
from glasshouse.store import read_json, write_json

VICTIMS = 6
EASY: Mapping[str, Any] = {
    "name": "control",
    "data": {"source": "digits", "auxiliary": 200, "heldout": 60, "examples": 1, "images_are_public": True},
    "model": {"name": "lenet_sigmoid"},
    "federation": {"protocol": "fedsgd", "clients": VICTIMS, "rounds": 1, "batch_size": 1},
    "audit": {"victims": VICTIMS, "distractors": 49, "utility": False, "controls": False},
}
KEYS = frozenset({"setting", "scenario", "fits", "metric"})
_FOUND: Final = "control.json"


@final
@dataclass(frozen=True, kw_only=True)
class ControlTask:
    """The control of one attack, as plain data.

    Attributes:
        key: names the attack with its settings.
        plugin: the attack's registered name, with its settings in the audit.
        folder: where the easy setting is simulated and attacked; may be deleted afterwards.
        device: where the attack runs.
        shared: folder of federations shared by several controls; empty: this control simulates its own.
    """

    key: str
    plugin: Plugin
    folder: str
    device: str = "cpu"
    shared: str = ""

    @property
    def attack(self) -> str:
        """The attack's registered name."""
        return self.plugin.name


def run_control(task: ControlTask) -> str:
    """Simulate the easy setting and attack it, in a process that runs plug-ins; return the task's key.

    Nothing runs if the card names no easy setting. A cached control is copied to the task's folder, because
    it may be judged on a machine with another cache.
    """
    easy, outcome_file = _easy_setting(task), Path(task.folder) / _FOUND
    if not easy or outcome_file.is_file():
        return task.key
    if (cached := _cached_at(task, easy)).is_file():
        write_json(outcome_file, read_json(cached))
        return task.key
    try:
        scenario = from_dict(_easy_scenario(task, easy))
    except (BadScenario, BadValue):
        return task.key  # the settings are invalid in the easy setting: no claims, so no power
    attack = attack_of(scenario.attacks[0])
    if raised_effort(task.plugin, scenario.attacks[0]):
        return task.key  # what it shows is not what the audit runs
    place = _federation_folder(task, scenario)
    place.mkdir(parents=True, exist_ok=True)
    with FileLock(place.with_suffix(".lock")):
        if not has_record(place):
            write_resolved(scenario, place / "scenario.toml")
        active = 0 if attack.needs.changes else None
        simulate(Group(folder=str(place), seed=scenario.seed, active=active, device=task.device))
    if read_json(place / "group.json")["refusal"] is not None:
        return task.key
    rounds = frozenset(r % scenario.federation.rounds for r in scenario.audit.rounds)
    calls = [
        AttackTask(
            folder=str(place),
            out=str(Path(task.folder) / "claims" / unit.name),
            plugin=scenario.attacks[0],
            threat=threat_of(scenario),
            attack_seed=scenario.attack_seed,
            unit=unit,
            device=task.device,
            uninformed=False,
        )
        for unit in units_of(attack, place, victims=scenario.audit.victims, attacked=rounds)
    ]
    for piece in pieces(calls):
        run_piece(piece)
    return task.key


def lost_control(task: ControlTask) -> str:
    """What :func:`run_control` returns where it ended its process again and again: no claims, so no power."""
    return task.key


def run_control_apart(task: ControlTask) -> str:
    """:func:`run_control` in a process of the attack's package; what is raised leaves it without claims."""
    call_plugin(partial(run_control, task), subject=f"control of attack '{task.attack}'")
    return task.key


def settle_control(task: ControlTask) -> None:
    """Drop what :func:`run_control_apart` left unreadable, in a process that ran no plug-in."""
    folder = Path(task.folder)
    for claims in folder.glob("claims/*"):
        try:
            read_outcome(claims)
        except GlasshouseError:
            shutil.rmtree(claims)
    if (found := folder / _FOUND).is_file():
        try:
            Control(**read_json(found))
        except (GlasshouseError, TypeError):
            found.unlink()


def judge_control(task: ControlTask) -> tuple[str, Control | None]:
    """Score the claims of :func:`run_control` in a process that ran no plug-in; None: no easy setting.

    Returns:
        Key of the task, and its control.
    """
    easy = _easy_setting(task)
    if not easy:
        return task.key, None
    path = _cached_at(task, easy)
    for known in (Path(task.folder) / _FOUND, path):
        if known.is_file():
            return task.key, Control(**read_json(known))
    claims = sorted(Path(task.folder).glob("claims/*/claims.json"))
    outcomes = [read_outcome(p.parent) for p in claims]
    failed = Control(passed=False, setting=easy.get("setting", ""), n=0, metric=easy["metric"])
    if not outcomes:
        eased = Plugin.model_validate(_easy_scenario(task, easy)["attacks"][0])
        failed = replace(failed, reason=raised_effort(task.plugin, eased))
    result = _judge(task, easy, outcomes, failed) if outcomes else failed
    write_json(path, asdict(result))
    return task.key, result


def _federation_folder(task: ControlTask, scenario: Scenario) -> Path:
    """The folder of the easy setting's federation, which passive attacks with the same setting share."""
    if not task.shared or attack_of(scenario.attacks[0]).needs.changes:
        return Path(task.folder)
    return Path(task.shared) / federation_digest(scenario)[:24]


def _judge(task: ControlTask, easy: Mapping[str, Any], outcomes: list[Outcome], failed: Control) -> Control:
    """The control of an attack from its claims; ``failed``: none of them is scored."""
    metric: Metric = load("metrics", easy["metric"])()
    scenario = from_dict(_easy_scenario(task, easy))
    ground, book = read_ground(_federation_folder(task, scenario), scenario)
    stream = Rng.root(scenario.seed).child("control")
    try:
        # The negative control: of victims whom they are not about, the same claims must know nothing.
        by_class = claim_of(metric).paired == "classes"
        turned = ground.against(exchange_classes(ground.truth) if by_class else rotate_victims(ground.truth))
        honest = score_outcomes(easy["metric"], metric, outcomes, ground, book)
        other = score_outcomes(easy["metric"], metric, outcomes, turned, book)
        if honest is None or other is None:
            return failed
        positive, negative = (gain_of(one, metric, rng=stream) for one in (honest, other))
    except (Undefined, Inapplicable):
        return failed
    return replace(
        failed,
        positive=positive.value,
        positive_low=positive.low,
        negative=negative.value,
        negative_low=negative.low,
        passed=positive.low > 0 and not negative.low > 0,
        n=len(honest.values) or sum(len(c.truth) for c in honest.clients),
    )


def _easy_setting(task: ControlTask) -> Mapping[str, Any]:
    """The control as declared by the attack's card.

    Raises:
        BadValue: it has unknown keys, such as settings that would replace the audit's.
    """
    own = card("attacks", task.attack)
    easy = own.control
    if unknown := sorted(set(easy) - KEYS):
        raise BadValue(
            f"control of attack '{task.attack}'",
            needs=f"keys among {', '.join(sorted(KEYS))}",
            got=", ".join(unknown),
            fix="a control runs with the audited settings; 'fits' is only for what depends on the easy data",
        )
    return {**easy, "metric": own.control_metric} if easy else {}


def raised_effort(audited: Plugin, eased: Plugin) -> str:
    """Which setting of a control asks for more effort than the audit does, in words; empty: none.

    More effort is a larger budget, or any larger whole number: iterations, restarts, candidates. Settings
    under which the attack cannot be built are refused elsewhere.

    Args:
        audited: the attack with its settings in the audit.
        eased: with those in the easy setting, with what its card ``fits``.
    """
    try:
        ours, easy = attack_of(audited), attack_of(eased)
    except (BadScenario, BadValue):
        return ""
    budgets = [getattr(one, "budget", None) for one in (ours, easy)]
    for name in ("amount", "restarts", "training"):
        least, most = (getattr(budget, name, 0) for budget in budgets)
        if most > least:
            return f"its easy setting raises the effort: {name} {most} for {least}"
    # Not every effort has a budget: any whole number that the easy setting raises counts, too.
    for path, value in _leaves(eased.arguments):
        before: Any = ours
        for key in path:
            before = getattr(before, key, None)
        whole = isinstance(value, int) and isinstance(before, int) and not isinstance(value, bool)
        if whole and value > before:
            return f"its easy setting raises the effort: {'.'.join(path)} {value} for {before}"
    return ""


def _leaves(table: Mapping[str, Any], *above: str) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Every setting of a table and of those in it, with its path."""
    for key, value in table.items():
        if isinstance(value, Mapping):
            yield from _leaves(value, *above, key)
        else:
            yield (*above, key), value


def easy_scenario(attack: Plugin) -> Scenario | None:
    """The scenario of an attack's control; None: it has no control, or its settings are invalid there."""
    task = ControlTask(key="", plugin=attack, folder="")
    try:
        return from_dict(_easy_scenario(task, easy)) if (easy := _easy_setting(task)) else None
    except (BadScenario, BadValue):
        return None


def _easy_scenario(task: ControlTask, easy: Mapping[str, Any]) -> dict[str, Any]:
    """The easy setting with the audited settings; ``fits`` replaces those without a meaning for its data."""
    scenario = _merge(EASY, easy.get("scenario", {}))
    scenario["attacks"] = [{"name": task.attack, **deepcopy(task.plugin.arguments)}]
    for path, value in easy.get("fits", {}).items():
        assign(scenario, f"attacks.0.{path}", value)
    return scenario


def _cached_at(task: ControlTask, easy: Mapping[str, Any]) -> Path:
    """The control's file in the cache, named by a digest of everything that it depends on."""
    key = {
        "scenario": _easy_scenario(task, easy),
        "metric": easy["metric"],
        "setting": easy.get("setting", ""),
        "sources": sources_digest("attacks", task.attack),
        "metric_sources": sources_digest("metrics", easy["metric"]),
        "device": task.device,
    }
    return cache_folder() / "controls" / f"{digest(key)[:24]}.json"


def _merge(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    new = {k: _merge(base.get(k, {}), v) if isinstance(v, Mapping) else v for k, v in over.items()}
    return {**base, **new}
