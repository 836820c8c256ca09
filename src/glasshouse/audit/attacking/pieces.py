"""Group calls of attacks into pieces of work: victims of a cell share a batch if the attack supports it.

Pieces depend on the run only, never on the number of processes, so that the claims are the same for any.
Each victim's outcome is written separately. An interrupted piece is run again as a whole; outcomes that it
has written are kept.
"""

import json
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

from glasshouse.attacks.base import Claim
from glasshouse.attacks.objective import collect_losses, thinned
from glasshouse.attacks.together import TogetherAttack
from glasshouse.audit.attacking.call import (
    AttackTask,
    adversary_side,
    run_attack,
    stream_of,
    view_of,
)
from glasshouse.audit.attacking.check import check_claims
from glasshouse.audit.attacking.claims import Outcome, is_finished, write_outcome
from glasshouse.audit.attacking.device import run_on
from glasshouse.audit.attacking.isolation import call_plugin
from glasshouse.audit.attacking.needs import attack_of, find_refusal
from glasshouse.audit.log import collect_notes
from glasshouse.errors import GlasshouseError
from glasshouse.store import read_jsonl
from glasshouse.tensors import copy_to
from glasshouse.transcript.view import View
from glasshouse.wire import Refusal

Piece = tuple[AttackTask, ...]
"""Calls of one attack with the same settings on updates of one round; or a single call."""

ROWS: Final = 16
"""Candidates that share a batch on a CPU, restarts included: a larger batch does not use a core better."""

MANY: Final = 128
"""Candidates that share a batch on a GPU."""


def pieces(tasks: Iterable[AttackTask]) -> list[Piece]:
    """Group ``tasks`` that can share a batch, keeping their order."""
    groups: dict[tuple[object, ...], list[AttackTask]] = {}
    for task in tasks:
        place = (task.folder, str(Path(task.out).parent), task.attack, task.arguments, task.unit.rounds)
        groups.setdefault(place, []).append(task)
    result: list[Piece] = []
    for every in groups.values():
        size = _victims_at_once(every[0]) if len(every) > 1 else 1
        result += [tuple(every[i : i + size]) for i in range(0, len(every), size)]
    return result


def _victims_at_once(task: AttackTask) -> int:
    attack = attack_of(task.attack, json.loads(task.arguments))
    if task.unit.client is None or not isinstance(attack, TogetherAttack) or not attack.shares:
        return 1
    lines = read_jsonl(Path(task.folder) / "transcript" / "rounds.jsonl")
    steps = max((m.get("steps", 1) for m in lines if m["message"] == "update"), default=1)
    if steps > 1:  # steps are simulated one after another: better in separate processes
        return 1
    restarts = attack.budget.restarts if attack.budget is not None else 1
    return max(1, (ROWS if task.device == "cpu" else MANY) // restarts)


def run_piece(piece: Piece) -> tuple[str, ...]:
    """Attack the units of a piece, write their outcomes and return their folders. Finished units are kept.

    If the victims cannot share a batch, or the attack fails on one of them, each is attacked alone.
    """
    if len(piece) > 1 and not all(is_finished(Path(task.out)) for task in piece):
        started = time.process_time()
        with collect_notes() as notes, collect_losses() as losses:
            every = _claims_together(piece)
        seconds = (time.process_time() - started) / len(piece)
        for victim, (task, claims) in enumerate(zip(piece, every, strict=False)):
            curve = thinned(losses, victim)
            outcome = Outcome(claims=claims, seconds=seconds, notes=tuple(notes), curve=curve)
            if not is_finished(Path(task.out)):
                write_outcome(outcome, Path(task.out))
    return tuple(run_attack(task) for task in piece)


def _claims_together(piece: Piece) -> tuple[tuple[Claim, ...], ...]:
    """The checked claims about every unit; empty if the units must be attacked alone."""
    first = piece[0]
    side = adversary_side(first.folder, trust_factory=first.trust_factory)
    attack = attack_of(first.attack, json.loads(first.arguments))
    assert isinstance(attack, TogetherAttack)
    if find_refusal(attack, first.attack, first.threat, side.grants, side.transcript.terms) is not None:
        return ()
    subject = f"attack '{first.attack}' on {len(piece)} units from {first.unit.name}"
    try:
        views = tuple(view_of(task, attack, side) for task in piece)
    except GlasshouseError:
        return ()

    def work(device: str) -> tuple[tuple[Claim, ...], ...]:
        rngs = [stream_of(task) for task in piece]
        every = copy_to(attack.run_together(copy_to(views, device), rngs=rngs), "cpu")
        _check(piece, every, views, subject)
        return every

    answer = call_plugin(lambda: run_on(first.device, work, subject=subject), subject=subject)
    return () if isinstance(answer, Refusal) else answer


def _check(piece: Piece, every: Sequence[tuple[Claim, ...]], views: Sequence[View], subject: str) -> None:
    """Check each unit's claims as if it had been attacked alone; raise if only some units have claims."""
    for task, claims, view in zip(piece, every, views, strict=bool(every)):
        check_claims(claims, view=view, unit=task.unit, subject=subject)
