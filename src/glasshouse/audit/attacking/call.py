"""One call of one attack on what a folder holds of the adversary's side; needs neither scenario nor data."""

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import final

from torch import Tensor

from glasshouse.attacks.base import Attack, Claim
from glasshouse.audit.attacking.claims import Outcome, Unit, check_claims, finished, write_outcome
from glasshouse.audit.attacking.device import moved
from glasshouse.audit.attacking.needs import attack_of, refusal_of, refused
from glasshouse.audit.log import noted
from glasshouse.errors import BadFile, DiskFull, GlasshouseError, Interrupted
from glasshouse.rng import Rng
from glasshouse.store import read_jsonl, read_tensors
from glasshouse.transcript.cut import cut
from glasshouse.transcript.files import (
    read_grants,
    read_own,
    read_transcript,
)
from glasshouse.transcript.grants import Grants
from glasshouse.transcript.record import Transcript
from glasshouse.transcript.threat import Threat
from glasshouse.wire import Refusal


@final
@dataclass(frozen=True, kw_only=True)
class AttackTask:
    """One call of one attack on what a folder holds; needs neither scenario nor data.

    Attributes:
        folder: holds ``transcript/ own/ grants/ adversary/``. out: where the outcome goes.
        attack, arguments: the plug-in. threat: its fields. attack_seed: root of its randomness.
        unit: what the call is about. device: where it runs.
        trust_factory: the transcript may name ``module:factory``: the user's own scenario does.
    """

    folder: str
    out: str
    attack: str
    arguments: str
    threat: Threat
    attack_seed: int
    unit: Unit
    device: str = "cpu"
    trust_factory: bool = False


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Side:
    """The adversary's side of a group: all that views are cut from."""

    transcript: Transcript
    grants: Grants
    own: Mapping[int, Mapping[str, Tensor]]
    memory: Mapping[str, Tensor]


@lru_cache(maxsize=2)
def adversary_side(folder: str, *, trust_factory: bool = False) -> Side:
    """Read the adversary's side of a group's folder.

    Raises:
        BadFile, BadValue: as the functions of :mod:`glasshouse.transcript.files`.
    """
    root = Path(folder)
    memory = root / "adversary" / "memory.safetensors"
    return Side(
        transcript=read_transcript(root / "transcript", trust_factory=trust_factory),
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
    side = adversary_side(task.folder, trust_factory=task.trust_factory)
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
