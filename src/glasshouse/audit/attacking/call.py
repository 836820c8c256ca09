"""Run attacks on the adversary's part of a folder, unit by unit; needs neither scenario nor data.

Victims of a cell share a batch if the attack supports it. These pieces of work depend on the run only, never
on the number of processes, so that the claims are the same for any. Each victim's outcome is written
separately. An interrupted piece is run again as a whole; outcomes that it has written are kept.
"""

import shutil
import time
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Final, final

from torch import Tensor

from glasshouse.attacks.base import Attack, Claim
from glasshouse.attacks.objective import collect_losses, thinned
from glasshouse.attacks.together import TogetherAttack
from glasshouse.audit.attacking.check import check_claims
from glasshouse.audit.attacking.claims import Outcome, Unit, is_finished, read_outcome, write_outcome
from glasshouse.audit.attacking.isolation import call_on, call_plugin
from glasshouse.audit.attacking.needs import attack_of, find_refusal, refusal_of
from glasshouse.audit.attacking.patience import limited
from glasshouse.audit.log import collect_notes
from glasshouse.errors import BadFile, GlasshouseError
from glasshouse.process import TIMES, flushed_subnormals
from glasshouse.rng import Rng
from glasshouse.scenario.table import Plugin
from glasshouse.tensors import copy_to
from glasshouse.transcript.cut import cut
from glasshouse.transcript.files import (
    read_grants,
    read_index,
    read_memory,
    read_own,
    read_transcript,
)
from glasshouse.transcript.grants import NAMES, Grants
from glasshouse.transcript.record import Transcript
from glasshouse.transcript.threat import Threat
from glasshouse.transcript.view import View
from glasshouse.wire import Refusal


@final
@dataclass(frozen=True, kw_only=True)
class AttackTask:
    """One call of one attack on the contents of a folder; needs neither scenario nor data.

    Attributes:
        folder: contains ``transcript/ own/ grants/ adversary/``.
        out: folder of the outcome.
        plugin: the attack's registered name, with its settings.
        threat: what the adversary sees and may change.
        attack_seed: root seed of its random streams.
        unit: what the call is about.
        device: where it runs.
        trust_factory: the transcript may name ``module:factory``, because the user's own scenario does.
        uninformed: also play the attack without any upload, where that is possible; a control has no use for
            it.
    """

    folder: str
    out: str
    plugin: Plugin
    threat: Threat
    attack_seed: int
    unit: Unit
    device: str = "cpu"
    trust_factory: bool = False
    uninformed: bool = True

    @property
    def attack(self) -> str:
        """The attack's registered name."""
        return self.plugin.name


Piece = tuple[AttackTask, ...]
"""Calls of one attack with the same settings on updates of one round; or a single call."""

ROWS: Final = 16
"""Candidates that share a batch on a CPU, restarts included: a larger batch does not use a core better."""

MANY: Final = 128
"""Candidates that share a batch on a GPU."""


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Side:
    """The adversary's part of a group: everything that views are made from."""

    transcript: Transcript
    grants: Grants
    own: Mapping[int, Mapping[str, Tensor]]
    memory: Mapping[str, Tensor]


@lru_cache(maxsize=2)
def adversary_side(folder: str, *, trust_factory: bool = False) -> Side:
    """Read the adversary's part of a group's folder.

    Raises:
        BadFile: as the functions of :mod:`glasshouse.transcript.files`.
        BadValue: as the functions of :mod:`glasshouse.transcript.files`.
    """
    root = Path(folder)
    transcript = read_transcript(root / "transcript", trust_factory=trust_factory)
    return Side(
        transcript=transcript,
        grants=read_grants(root / "grants", task=transcript.terms.architecture.task),
        own=read_own(root / "own"),
        memory=read_memory(root / "adversary"),
    )


def run_attack(task: AttackTask) -> str:
    """Attack one unit and write its outcome; return the outcome's folder. Finished units are skipped.

    Any error of the attack, or of the check of its claims, is written as a refusal of this unit.
    """
    out = Path(task.out)
    if is_finished(out):
        return task.out
    side = adversary_side(task.folder, trust_factory=task.trust_factory)
    attack = attack_of(task.plugin)
    refusal = find_refusal(attack, task.attack, task.threat, side.grants, side.transcript.terms)
    started = time.process_time()
    outcome = Outcome(refusal=refusal)
    # What cannot apply is refused before it costs anything.
    if refusal is None:
        with collect_notes() as notes, collect_losses() as losses:
            answer = _call(task, attack, side)
        seconds = time.process_time() - started
        claims, refusal = ((), answer) if isinstance(answer, Refusal) else (answer, None)
        # The same attack without any upload is a null adversary for its own claims.
        blind = _uninformed(task, attack, side, claims) if task.uninformed else ()
        if isinstance(blind, Refusal):
            notes.append(f"without uploads it made no claim: {blind.got}")
        outcome = Outcome(
            claims=claims,
            uninformed=() if isinstance(blind, Refusal) else blind,
            refusal=refusal,
            seconds=seconds,
            notes=tuple(notes),
            curve=thinned(losses),
        )
    write_outcome(outcome, out)
    return task.out


def _call(task: AttackTask, attack: Attack, side: Side) -> tuple[Claim, ...] | Refusal:
    """The attack's claims about a view with the grants that it declares."""
    subject = f"attack '{task.attack}' on {task.unit.name}"
    try:
        view = view_of(task, attack, side)
    except BadFile:
        raise
    except GlasshouseError as error:
        return refusal_of(error)
    return call_attack(attack, view, unit=task.unit, rng=stream_of(task), device=task.device, subject=subject)


def _uninformed(
    task: AttackTask, attack: Attack, side: Side, claims: tuple[Claim, ...]
) -> tuple[Claim, ...] | Refusal:
    """What the same attack claims of classes without any upload; empty: it has no such counterpart.

    The stream is that of the attack, so that the two differ by the uploads alone.
    """
    if not any(claim.paired == "classes" for claim in claims):
        return ()
    view = view_of(task, attack, side).without_updates()
    if view is None:
        return ()
    subject = f"attack '{task.attack}' on {task.unit.name}, without uploads"
    answer = call_attack(
        attack, view, unit=task.unit, rng=stream_of(task), device=task.device, subject=subject
    )
    if isinstance(answer, Refusal):
        return answer
    return tuple(claim for claim in answer if claim.paired == "classes")


def call_attack(
    attack: Attack, view: View, *, unit: Unit, rng: Rng, device: str, subject: str
) -> tuple[Claim, ...] | Refusal:
    """Run the attack on a copy of its view on ``device``; return its checked claims."""

    def work(place: str) -> tuple[Claim, ...]:
        with limited(subject):
            claims = copy_to(attack.run(copy_to(view, place), rng=rng), "cpu")
        check_claims(claims, view=view, unit=unit, subject=subject)
        return claims

    return call_on(device, work, subject=subject)


def stream_of(task: AttackTask) -> Rng:
    """The attack's own random stream for its unit."""
    return Rng.root(task.attack_seed).child(f"attack/{task.attack}").child(task.unit.name)


def view_of(task: AttackTask, attack: Attack, side: Side) -> View:
    """The attack's view of its unit.

    Raises:
        GlasshouseError: the view does not exist.
    """
    view = cut(
        side.transcript,
        threat=task.threat,
        grants=side.grants,
        own=side.own,
        memory=side.memory,
        rounds=task.unit.rounds or None,
        client=task.unit.client,
    )
    return replace(view, grants=declared_grants(attack, view.grants))


def declared_grants(attack: Attack, grants: Grants) -> Grants:
    """The part of ``grants`` that ``attack`` declares, as required or as used if granted."""
    declared = attack.needs.grants | attack.needs.uses
    return Grants(**{name: getattr(grants, name) for name in NAMES if name in declared})


def units_of(
    attack: Attack,
    folder: Path,
    *,
    victims: int,
    attacked: frozenset[int],
    existing: Collection[tuple[int, int]] = (),
) -> tuple[Unit, ...]:
    """The units of ``attack``: at most ``victims`` updates, or each attacked round, or the run.

    Args:
        attack: with its settings.
        folder: of the group.
        victims: largest number of updates.
        attacked: rounds.
        existing: (round, client) of the updates that can be scored; empty: all can.
    """
    scope = attack.needs.scope
    if scope == "run":
        return (Unit(),)
    if scope == "round":
        return tuple(Unit(rounds=(r,)) for r in sorted(attacked))
    lines = read_index(folder / "transcript")
    pairs = [(m["round"], m["client"]) for m in lines if m["message"] == "update" and m["round"] in attacked]
    if not pairs:  # hidden by secure_sum or by the threat: one unit, so that the refusal is reported once
        return (Unit(rounds=(min(attacked),)),)
    scored = [pair for pair in pairs if pair in existing] if existing else pairs
    return tuple(Unit(rounds=(r,), client=c) for r, c in scored[:victims])


def pieces(tasks: Iterable[AttackTask]) -> list[Piece]:
    """Group ``tasks`` that can share a batch, keeping their order."""
    groups: dict[tuple[object, ...], list[AttackTask]] = {}
    for task in tasks:
        place = (task.folder, str(Path(task.out).parent), task.unit.rounds)
        groups.setdefault(place, []).append(task)
    result: list[Piece] = []
    for every in groups.values():
        size = _victims_at_once(every[0]) if len(every) > 1 else 1
        result += [tuple(every[i : i + size]) for i in range(0, len(every), size)]
    return result


def _victims_at_once(task: AttackTask) -> int:
    attack = attack_of(task.plugin)
    if task.unit.client is None or not isinstance(attack, TogetherAttack) or not attack.shares:
        return 1
    lines = read_index(Path(task.folder) / "transcript")
    steps = max((m.get("steps", 1) for m in lines if m["message"] == "update"), default=1)
    if steps > 1:  # steps are simulated one after another: better in separate processes
        return 1
    restarts = attack.budget.restarts if attack.budget is not None else 1
    return max(1, (ROWS if task.device == "cpu" else MANY) // restarts)


@flushed_subnormals()
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


def refuse_lost(piece: Piece) -> tuple[str, ...]:
    """Write refusals of units that ended their process again and again; return the folders of all."""
    ended = f"{TIMES} processes ended in which it ran alone (out of memory, a crash of its code, or its time)"
    return _refuse_unfinished(piece, needs="a process that lives until its claims are made", got=ended)


def run_apart(piece: Piece) -> str:
    """:func:`run_piece` in a process of the attack's package; what was raised outside of calls, or nothing.

    The package may have replaced what outcomes are written with.
    """
    answer = call_plugin(lambda: run_piece(piece), subject=f"attack '{piece[0].attack}'")
    return answer.got if isinstance(answer, Refusal) else ""


def settle_apart(piece: Piece, raised: str) -> None:
    """Refuse, in a process that ran no plug-in, the units of which :func:`run_apart` left nothing to read."""
    for task in piece:
        try:
            read_outcome(Path(task.out))
        except GlasshouseError as error:
            raised = raised or error.got
            shutil.rmtree(task.out, ignore_errors=True)
    _refuse_unfinished(piece, needs="claims that are written as they are", got=raised)


def _refuse_unfinished(piece: Piece, *, needs: str, got: str) -> tuple[str, ...]:
    for task in piece:
        if not is_finished(Path(task.out)):
            refusal = Refusal(
                subject=f"attack '{task.attack}' on {task.unit.name}",
                needs=needs,
                got=got,
                fix="free some memory, take a smaller batch or model, or report it to the attack's author",
            )
            write_outcome(Outcome(refusal=refusal), Path(task.out))
    return tuple(task.out for task in piece)


def _claims_together(piece: Piece) -> tuple[tuple[Claim, ...], ...]:
    """The checked claims about every unit; empty if the units must be attacked alone."""
    first = piece[0]
    side = adversary_side(first.folder, trust_factory=first.trust_factory)
    attack = attack_of(first.plugin)
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
        with limited(subject):
            every = copy_to(attack.run_together(copy_to(views, device), rngs=rngs), "cpu")
        # As if each unit had been attacked alone; raises if only some units have claims.
        for task, claims, view in zip(piece, every, views, strict=bool(every)):
            check_claims(claims, view=view, unit=task.unit, subject=subject)
        return every

    answer = call_on(first.device, work, subject=subject)
    return () if isinstance(answer, Refusal) else answer
