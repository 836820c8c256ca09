"""One cell of an audit on disk: simulate its federation, and run attacks on what was recorded.

A group is one simulation: a cell with one seed, and either all of its passive attacks or one active
attack (which alters what the server sends, so it needs a federation of its own). Its folder holds
``transcript/ own/ grants/ adversary/ truth/ claims/`` and, written last, ``group.json``.
"""

import json
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, final

from torch import Tensor

from glasshouse.attacks.base import ActiveAttack, Attack, Claim
from glasshouse.audit.accuracy import Accuracies
from glasshouse.audit.build import Built, build
from glasshouse.audit.claims import Outcome, Unit, check_claims, finished, write_outcome
from glasshouse.audit.device import moved
from glasshouse.audit.grants import granted
from glasshouse.audit.log import noted
from glasshouse.audit.recorder import BothSides
from glasshouse.audit.watch import Watch
from glasshouse.errors import BadFile, BadValue, DiskFull, GlasshouseError, Inapplicable, Interrupted
from glasshouse.federation.setting import FederationProtocol
from glasshouse.metrics.utility import accuracy
from glasshouse.models.fit import predict
from glasshouse.registry import load
from glasshouse.rng import Rng
from glasshouse.scenario.load import read_resolved
from glasshouse.scenario.spec import Scenario
from glasshouse.store import read_jsonl, read_tensors, write_json, write_tensors
from glasshouse.transcript.cut import cut
from glasshouse.transcript.files import (
    read_grants,
    read_own,
    read_transcript,
    write_grants,
    write_own,
    write_transcript,
)
from glasshouse.transcript.grants import Grants
from glasshouse.transcript.record import Log, Transcript
from glasshouse.transcript.threat import Threat
from glasshouse.transcript.view import RoundView, View
from glasshouse.truth.record import Truth, write_truth
from glasshouse.wire import Crafted, Refusal, Tamper


@final
@dataclass(frozen=True, kw_only=True)
class Group:
    """One simulation to run: plain data, so that any process can do it.

    Attributes:
        folder: of the group, absolute. seed: of this repetition.
        active: position of the active attack in the scenario, or None for the passive ones.
    """

    folder: str
    seed: int
    active: int | None = None


@final
@dataclass(frozen=True, kw_only=True)
class AttackTask:
    """One call of one attack on what a folder holds; needs neither scenario nor data.

    Attributes:
        folder: holds ``transcript/ own/ grants/ adversary/``. out: where the outcome goes.
        attack, arguments: the plug-in. threat: its fields. attack_seed: root of its randomness.
        unit: what the call is about. device: where it runs.
    """

    folder: str
    out: str
    attack: str
    arguments: str
    threat: Threat
    attack_seed: int
    unit: Unit
    device: str = "cpu"


def attack_of(name: str, arguments: Mapping[str, Any]) -> Attack:
    """The attack with its settings."""
    attack: Attack = load("attacks", name)(**arguments)
    return attack


def simulate(group: Group) -> str:
    """Run one group's federation and file everything; returns its folder. Finished groups are kept."""
    folder = Path(group.folder)
    if (folder / "group.json").is_file():
        return group.folder
    started = time.process_time()
    scenario = read_resolved(folder / "scenario.toml")
    built = build(scenario, seed=group.seed)
    log = Log(terms=built.setting.terms, keep=built.keep)
    watch = _watch(built)
    recorder = BothSides(
        log=log,
        rounds=built.attacked,
        watch=watch,
        accuracies=None if watch else _accuracies(built, scenario),
    )
    memory: dict[str, Tensor] = {}
    refusal: Refusal | None = None
    tamper = None
    if group.active is not None:
        spec = scenario.attacks[group.active]
        attack = attack_of(spec.name, spec.arguments)
        given = granted(built, log.transcript(), {})
        refusal = refused(attack, spec.name, built.threat, given, built.setting.terms.protocol)
        if refusal is None:
            root = Rng.root(scenario.attack_seed).child(f"attack/{spec.name}")
            tamper = _tamper(attack, built, log, given, memory, rng=root)
    protocol: FederationProtocol = load("protocols", built.setting.terms.protocol)()
    final: Mapping[str, Tensor] = built.setting.start
    if refusal is None:
        try:
            final = protocol.play(
                built.setting, recorder=recorder, rng=built.rng.child("federation"), tamper=tamper
            )
        except (Inapplicable, BadValue) as error:  # it diverged, or what is asked of the clients cannot be
            refusal = refusal_of(error)
    _file(folder, built, recorder, memory, refusal)
    utility = (watch.utility() if watch else _utility(built, final)) if refusal is None else None
    write_json(
        folder / "group.json",
        {
            "seed": group.seed,
            "active": group.active,
            "refusal": asdict(refusal) if refusal else None,
            "utility": utility,
            "sent": _as_sent(built, log) if refusal is None and group.active is not None else None,
            "curve": recorder.accuracies.points if recorder.accuracies and refusal is None else [],
            "parties": watch.curve() if watch else [],
            "entropies": watch.histograms() if watch else {},
            "rounds": scenario.federation.rounds,
            "seconds": time.process_time() - started,
            "facts": built.facts,
        },
    )
    return group.folder


def _watch(built: Built) -> Watch | None:
    """In logit protocols the models never travel: somebody must look while they train."""
    logits = built.setting.terms.sends == "logits"
    return Watch(setting=built.setting, heldout=built.heldout, public=built.public) if logits else None


def _accuracies(built: Built, scenario: Scenario) -> Accuracies | None:
    if built.heldout is None or scenario.federation.rounds < 2:
        return None
    return Accuracies(setting=built.setting, heldout=built.heldout, rounds=scenario.federation.rounds)


def _tamper(
    attack: Attack, built: Built, log: Log, given: Grants, memory: dict[str, Tensor], *, rng: Rng
) -> Tamper | None:
    if not isinstance(attack, ActiveAttack):
        return None
    active: ActiveAttack = attack

    def ask(number: int) -> Crafted | None:
        if number not in built.attacked or log.pending is None:
            return None
        before = log.transcript()
        kept = any(record.broadcasts for record in before.rounds)
        past = _cut(before, built.threat, given, log.servers, memory).rounds if kept else ()
        view = View(
            terms=log.terms,
            threat=built.threat,
            rounds=(*past, RoundView(round=number, broadcast=log.pending)),
            own=log.servers,
            grants=given,
            memory=memory,
        )
        crafted = active.craft(view, rng=rng.child(f"craft/{number}"))
        if crafted is not None:
            memory.update(crafted.memory)
        return crafted

    return ask


def _cut(
    transcript: Transcript,
    threat: Threat,
    grants: Grants,
    own: Mapping[int, Mapping[str, Tensor]],
    memory: Mapping[str, Tensor],
) -> View:
    return cut(transcript, threat=threat, grants=grants, own=own, memory=memory)


def _file(
    folder: Path, built: Built, recorder: BothSides, memory: Mapping[str, Tensor], refusal: Refusal | None
) -> None:
    log = recorder.log
    transcript = log.transcript()
    write_truth(
        Truth(
            private=built.setting.private,
            shards={c: tuple(rows.tolist()) for c, rows in enumerate(built.setting.shards)},
            used=recorder.used,
            marked=built.marked,
        ),
        folder / "truth",
    )
    write_tensors(folder / "truth" / "scoring.safetensors", built.scoring)
    if refusal is not None:
        return
    write_transcript(transcript, folder / "transcript")
    write_own(log.servers, folder / "own")
    write_grants(granted(built, transcript, recorder.used), folder / "grants")
    (folder / "adversary").mkdir(exist_ok=True)
    if memory:
        write_tensors(folder / "adversary" / "memory.safetensors", memory)


def _utility(built: Built, final: Mapping[str, Tensor]) -> dict[str, float] | None:
    if built.heldout is None:
        return None
    model = built.setting.build(built.setting.terms.architecture)
    model.load_state_dict(dict(final))
    predicted = predict(model, built.heldout.inputs).argmax(1)
    interval = accuracy(predicted, built.heldout.labels)
    return {"value": interval.value, "low": interval.low, "high": interval.high, "n": len(built.heldout)}


def _as_sent(built: Built, log: Log) -> dict[str, float] | None:
    """Held-out accuracy of the model that a malicious server sent, where it is of the agreed architecture."""
    sent = [b for r in log.transcript().rounds if r.round in built.attacked for b in r.broadcasts]
    agreed = built.setting.terms.architecture
    if built.heldout is None or not sent or sent[0].architecture != agreed:
        return None
    model = built.setting.build(agreed)
    model.load_state_dict({**built.setting.start, **sent[0].tensors})
    found = accuracy(predict(model, built.heldout.inputs).argmax(1), built.heldout.labels)
    return {"value": found.value, "n": len(built.heldout)}


def refused(attack: Attack, name: str, threat: Threat, grants: Grants, protocol: str) -> Refusal | None:
    """Why the threat, the grants or the protocol rule this attack out before it runs; None: they do not."""
    needs, subject = attack.needs, f"attack '{name}'"
    if protocol not in needs.protocols:
        return Refusal(
            subject=subject,
            needs=f"protocol {' or '.join(sorted(needs.protocols))}",
            got=protocol,
            fix="choose an attack on this protocol: glasshouse list attacks",
        )
    derived = {"aggregate"} if grants.cohorts and threat.role != "server" else set()  # from successive models
    if unseen := sorted(needs.sees - threat.sees - derived):
        return Refusal(
            subject=subject,
            needs=f"an adversary who sees {', '.join(sorted(needs.sees))}",
            got=f"{threat.role} who sees {', '.join(sorted(threat.sees)) or 'nothing'}",
            fix=f"add {', '.join(unseen)} to threat.sees if the adversary sees it (secure_sum hides updates)",
        )
    if fixed := sorted(needs.changes - threat.changes):
        return Refusal(
            subject=subject,
            needs=f"a server that changes {', '.join(sorted(needs.changes))}",
            got=f"changes = {sorted(threat.changes)}",
            fix=f"add {', '.join(fixed)} to threat.changes to audit a malicious server",
        )
    if missing := sorted(needs.grants - set(grants.given())):
        return Refusal(
            subject=subject,
            needs=f"side knowledge: {', '.join(sorted(needs.grants))}",
            got=f"given: {', '.join(grants.given()) or 'nothing'}",
            fix=f"set grants.{missing[0]} = true (and data.auxiliary for auxiliary data), or drop the attack",
        )
    return None


def refusal_of(error: GlasshouseError) -> Refusal:
    """An error of ours as a refusal."""
    return Refusal(subject=error.subject, needs=error.needs, got=error.got, fix=error.fix)


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Side:
    """The adversary's side of a group: all that views are cut from."""

    transcript: Transcript
    grants: Grants
    own: Mapping[int, Mapping[str, Tensor]]
    memory: Mapping[str, Tensor]


@lru_cache(maxsize=2)
def adversary_side(folder: str) -> Side:
    """Read the adversary's side of a group's folder."""
    root = Path(folder)
    memory = root / "adversary" / "memory.safetensors"
    return Side(
        transcript=read_transcript(root / "transcript"),
        grants=read_grants(root / "grants"),
        own=read_own(root / "own"),
        memory=read_tensors(memory) if memory.is_file() else {},
    )


def run_attack(task: AttackTask) -> str:
    """Run one unit and file its outcome; returns the outcome's folder. Finished units are kept.

    An error of ours that the attack, or our check of its claims, raises is filed as a refusal.
    """
    out = Path(task.out)
    if finished(out):
        return task.out
    side = adversary_side(task.folder)
    attack = attack_of(task.attack, json.loads(task.arguments))
    refusal = refused(attack, task.attack, task.threat, side.grants, side.transcript.terms.protocol)
    started = time.process_time()
    outcome = Outcome(refusal=refusal)
    if refusal is None:
        with noted() as notes:
            claims, refusal = _called(task, attack, side)
        seconds = time.process_time() - started
        outcome = Outcome(claims=claims, refusal=refusal, seconds=seconds, notes=tuple(notes))
    write_outcome(outcome, out)
    return task.out


def _called(task: AttackTask, attack: Attack, side: Side) -> tuple[tuple[Claim, ...], Refusal | None]:
    """The attack's claims, checked, or the refusal that an error of ours becomes."""
    rng = Rng.root(task.attack_seed).child(f"attack/{task.attack}").child(task.unit.name)
    try:
        view = cut(
            side.transcript,
            threat=task.threat,
            grants=side.grants,
            own=side.own,
            memory=side.memory,
            rounds=task.unit.rounds or None,
            client=task.unit.client,
        )
        claims = moved(attack.run(moved(view, task.device), rng=rng), "cpu")
        subject = f"attack '{task.attack}' on {task.unit.name}"
        check_claims(claims, terms=side.transcript.terms, unit=task.unit, subject=subject)
    except (DiskFull, Interrupted, BadFile):
        raise
    except GlasshouseError as error:
        return (), refusal_of(error)
    return claims, None


def units_of(attack: Attack, folder: Path, *, victims: int, attacked: frozenset[int]) -> tuple[Unit, ...]:
    """What ``attack`` is called for: at most ``victims`` updates, or each attacked round, or the run."""
    scope = attack.needs.scope
    if scope == "run":
        return (Unit(),)
    if scope == "round":
        return tuple(Unit(rounds=(r,)) for r in sorted(attacked))
    lines = read_jsonl(folder / "transcript" / "rounds.jsonl")
    pairs = [(m["round"], m["client"]) for m in lines if m["message"] == "update" and m["round"] in attacked]
    if not pairs:  # hidden by secure_sum, or not seen: one unit, so that the refusal is reported once
        return (Unit(rounds=(min(attacked),)),)
    return tuple(Unit(rounds=(r,), client=c) for r, c in pairs[:victims])
