"""Two controls before an attack is believed: it must succeed where it has to, and stay silent where it must.

The positive control is an easy setting that the attack's card names (no defence, a model that leaks). The
negative control scores the same claims against another victim's examples: an update unrelated to the
victim. Both are small, run on the built-in digits unless the card says otherwise, and are cached.
"""

import hashlib
import json
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, final

import glasshouse
from glasshouse.audit.attacking.call import AttackTask, run_attack, units_of
from glasshouse.audit.attacking.claims import read_outcome
from glasshouse.audit.attacking.needs import attack_of
from glasshouse.audit.attacking.threat import threat_of
from glasshouse.audit.scoring.claims.truths import relabelled, shifted
from glasshouse.audit.scoring.finding import gain_of
from glasshouse.audit.scoring.judge import judge_of
from glasshouse.audit.scoring.score import score_outcomes
from glasshouse.audit.simulation.group import Group, simulate
from glasshouse.cache import folder as cache_folder
from glasshouse.registry import card, load
from glasshouse.results.records import Control
from glasshouse.rng import Rng
from glasshouse.scenario.load import from_dict, write_resolved
from glasshouse.store import read_json, write_json

VICTIMS = 6
EASY: Mapping[str, Any] = {
    "name": "control",
    "data": {"source": "digits", "auxiliary": 200, "heldout": 60, "examples": 1, "images_are_public": True},
    "model": {"name": "lenet_sigmoid"},
    "federation": {"protocol": "fedsgd", "clients": VICTIMS, "rounds": 1, "batch_size": 1},
    "audit": {"victims": VICTIMS, "distractors": 49, "utility": False, "controls": False},
}


@final
@dataclass(frozen=True, kw_only=True)
class ControlTask:
    """One attack to be controlled, as plain data. ``arguments``: its settings in the audit, as JSON."""

    key: str
    attack: str
    arguments: str


def control(task: ControlTask) -> tuple[str, Control | None]:
    """Key of the task, and its control; None where the card names no easy setting."""
    easy = card("attacks", task.attack).control
    if not easy:
        return task.key, None
    arguments = {**json.loads(task.arguments), **easy.get("arguments", {})}
    scenario = _merged(EASY, easy.get("scenario", {}))
    scenario["attacks"] = [{"name": task.attack, **arguments}]
    metric_name = easy.get("metric", "psnr")
    stamp = json.dumps([glasshouse.__version__, scenario, metric_name, _source(task.attack)], sort_keys=True)
    path = cache_folder() / "controls" / f"{hashlib.sha256(stamp.encode()).hexdigest()[:24]}.json"
    if path.is_file():
        return task.key, Control(**read_json(path))
    with tempfile.TemporaryDirectory() as place:
        made = _run(scenario, task.attack, metric_name, easy.get("setting", ""), Path(place))
    write_json(path, asdict(made))
    return task.key, made


def _run(raw: Mapping[str, Any], name: str, metric_name: str, setting: str, place: Path) -> Control:
    scenario = from_dict(raw)
    write_resolved(scenario, place / "scenario.toml")
    attack = attack_of(name, scenario.attacks[0].arguments)
    active = 0 if attack.needs.changes else None
    simulate(Group(folder=str(place), seed=scenario.seed, active=active))
    rounds = frozenset(r % scenario.federation.rounds for r in scenario.audit.rounds)
    threat = threat_of(scenario)
    outcomes = []
    for unit in units_of(attack, place, victims=scenario.audit.victims, attacked=rounds):
        task = AttackTask(
            folder=str(place),
            out=str(place / "claims" / unit.name),
            attack=name,
            arguments=json.dumps(scenario.attacks[0].arguments),
            threat=threat,
            attack_seed=scenario.attack_seed,
            unit=unit,
        )
        run_attack(task)
        outcomes.append(read_outcome(Path(task.out)))
    metric = load("metrics", metric_name)()
    judge = judge_of(place, scenario)
    honest = score_outcomes(metric_name, metric, outcomes, judge)
    if metric.claim == "class_representatives":
        exchanged = relabelled(judge.truth)
    else:
        keys = sorted(judge.truth.used, key=lambda key: key[::-1])  # rounds first: a sum is exchanged whole
        exchanged = shifted(judge.truth, dict(zip(keys, keys[1:] + keys[:1], strict=True)))
    other = score_outcomes(metric_name, metric, outcomes, judge.against(exchanged))
    if honest is None or other is None:
        return Control(
            positive=None,
            positive_low=None,
            negative=None,
            negative_low=None,
            passed=False,
            setting=setting,
            n=0,
            metric=metric_name,
        )
    stream = Rng.root(scenario.seed).child("control")
    positive = gain_of(honest, metric, rng=stream)
    negative = gain_of(other, metric, rng=stream)
    return Control(
        positive=positive.value,
        positive_low=positive.low,
        negative=negative.value,
        negative_low=negative.low,
        passed=positive.low > 0 and not negative.low > 0,
        setting=setting,
        n=len(honest.values) or sum(len(c.truth) for c in honest.clients),
        metric=metric_name,
    )


def _merged(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    out = dict(base)
    for key, value in over.items():
        out[key] = _merged(out.get(key, {}), value) if isinstance(value, Mapping) else value
    return out


def _source(attack: str) -> str:
    """Digest of the package's own sources, so that a changed attack is controlled again."""
    factory = load("attacks", attack)
    home = Path(glasshouse.__file__).parent
    total = hashlib.sha256(getattr(factory, "__module__", "").encode())
    for folder in ("attacks", "federation", "models"):
        for path in sorted((home / folder).rglob("*.py")):
            total.update(path.read_bytes())
    return total.hexdigest()
