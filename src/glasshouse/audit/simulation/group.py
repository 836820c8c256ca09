"""Simulate the federation of one group and write it to disk.

A group is one simulation: a cell with one seed, and either all of its passive attacks or one active
attack (which alters what the server sends, so it needs its own federation). Its folder contains
``transcript/ own/ grants/ adversary/ truth/ claims/`` and, written last, ``group.json``.
"""

import shutil
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, final

from torch import Tensor

from glasshouse.attacks.base import ActiveAttack, Attack
from glasshouse.audit.attacking.call import declared_grants
from glasshouse.audit.attacking.isolation import call_on, own_device
from glasshouse.audit.attacking.needs import attack_of, find_refusal, refusal_of
from glasshouse.audit.log import collect_notes
from glasshouse.audit.provenance.hashes import NOTES, write_hashes
from glasshouse.audit.simulation.build import Built, build
from glasshouse.audit.simulation.grants import collect_grants
from glasshouse.audit.simulation.guard import SimulatedGuard
from glasshouse.audit.simulation.monitor import Accuracies, BothSides, ModelMonitor, utility_row
from glasshouse.audit.simulation.property import data_properties
from glasshouse.audit.simulation.record import GroupRecord, has_record, write_record
from glasshouse.cache import digest
from glasshouse.errors import BadValue, Inapplicable
from glasshouse.federation.crew import WORTH, ProcessCrew
from glasshouse.federation.setting import FederationProtocol, Setting
from glasshouse.interfaces import task_of
from glasshouse.models.fit import share_right
from glasshouse.process import flushed_subnormals, processor_time
from glasshouse.registry import load
from glasshouse.rng import Rng
from glasshouse.scenario.load import read_resolved
from glasshouse.scenario.spec import Scenario
from glasshouse.scenario.table import Guard
from glasshouse.store import write_json, write_tensors
from glasshouse.tensors import copy_to
from glasshouse.transcript.cut import cut
from glasshouse.transcript.files import (
    TranscriptWriter,
    write_grants,
    write_own,
)
from glasshouse.transcript.grants import Grants
from glasshouse.transcript.record import Log
from glasshouse.transcript.view import RoundView, View
from glasshouse.truth.record import Truth, write_truth
from glasshouse.wire import Crafted, Refusal


@final
@dataclass(frozen=True, kw_only=True)
class Group:
    """One simulation to run, as plain data, so that any process can run it.

    Attributes:
        folder: of the group, absolute.
        seed: of this repetition.
        victims: updates that are attacked in it, at most.
        active: position of the active attack in the scenario, or None for the passive ones.
        device: where large models are trained and attacks craft the server's messages.
        processes: number of clients of a round that may train at a time.
        same_as: folder of a group with the same federation, which is copied once it is recorded; empty: none.
    """

    folder: str
    seed: int
    victims: int = 1
    active: int | None = None
    device: str = "cpu"
    processes: int = 1
    same_as: str = ""


def federation_digest(scenario: Scenario) -> str:
    """Digest of everything that the federation of a scenario's passive attacks depends on.

    The attacks themselves are excluded, but not the property that an attack infers: its holders are part of
    the ground truth.
    """
    properties = [what.name for what in data_properties(scenario)]
    return digest([scenario.model_dump(mode="json", exclude={"attacks"}), properties])


@flushed_subnormals()
def simulate(group: Group) -> str:
    """Run one group's federation, write everything and return its folder. Finished groups are kept."""
    folder = Path(group.folder)
    if has_record(folder):
        return group.folder
    started = processor_time()
    scenario = read_resolved(folder / "scenario.toml")
    built = build(scenario, seed=group.seed, device=own_device(group.device))
    guard = _guard(built, scenario)
    shutil.rmtree(folder / "transcript", ignore_errors=True)  # of a simulation that was interrupted
    writer = TranscriptWriter(folder=folder / "transcript", keep=built.keep)
    log = Log(terms=built.setting.terms, keep=built.keep, store=writer.store)
    watch = _watch(built)
    recorder = BothSides(
        log=log,
        rounds=built.attacked,
        watch=watch,
        accuracies=None if watch else _accuracies(built, scenario),
    )
    crafting = _crafting(group, scenario, built, log)
    refusal, tamper = (crafting, None) if isinstance(crafting, Refusal) else (None, crafting)
    final: Mapping[str, Tensor] = built.setting.start
    if refusal is None:
        with collect_notes() as notes:
            try:
                with _crew(group, scenario, built.setting) as crew:
                    setting = replace(built.setting, guard=guard, crew=crew)
                    rng = built.rng.child("federation")
                    protocol: FederationProtocol = load("protocols", setting.terms.protocol)()
                    final = protocol.play(setting, recorder=recorder, rng=rng, tamper=tamper)
            except (Inapplicable, BadValue) as error:  # training diverged, or the request cannot be met
                refusal = refusal_of(error)
        if notes:
            write_json(folder / NOTES, notes)
    file_group(folder, built, recorder, writer, memory=tamper.memory if tamper else {}, refusal=refusal)
    write_hashes(folder)
    utility = (watch.utility() if watch else utility_of(built, final)) if refusal is None else None
    record = GroupRecord(
        seed=group.seed,
        active=group.active,
        refusal=refusal,
        utility=utility,
        measured=built.setting.terms.architecture.task.utility,
        sent=_as_sent(built, log) if refusal is None and group.active is not None else None,
        curve=tuple(recorder.accuracies.points) if recorder.accuracies and refusal is None else (),
        parties=tuple(watch.curve()) if watch else (),
        entropies={name: tuple(v) for name, v in watch.histograms().items()} if watch else {},
        guard=tuple(guard.decisions) if guard else (),
        rounds=scenario.federation.rounds,
        seconds=processor_time() - started,
        crafting=tamper.seconds if tamper else 0.0,
        facts=built.facts,
    )
    write_record(record, folder)
    return group.folder


def _watch(built: Built) -> ModelMonitor | None:
    """The monitor of a logit protocol, whose models are never sent and must be measured during training."""
    logits = built.setting.terms.sends == "logits"
    return ModelMonitor(setting=built.setting, heldout=built.heldout, public=built.public) if logits else None


def _guard(built: Built, scenario: Scenario) -> SimulatedGuard | None:
    """The clients' guard, if the scenario has one."""
    if scenario.guard == Guard():
        return None
    return SimulatedGuard(does=scenario.guard, agreed=built.setting.build(built.setting.terms.architecture))


def _crew(group: Group, scenario: Scenario, setting: Setting) -> AbstractContextManager[ProcessCrew | None]:
    """Worker processes for the clients of a large federation; None: they train one after another."""
    if group.processes < 2 or setting.device != "cpu" or not has_use_for_crew(scenario):
        return nullcontext()
    return ProcessCrew(group.processes, make=_setting_of, task=(group.folder, group.seed))


def has_use_for_crew(scenario: Scenario) -> bool:
    """Whether clients may train in parallel, and are numerous enough for it to pay off."""
    federation = scenario.federation
    is_plain = not federation.behaviours and scenario.guard == Guard() and not scenario.captured
    is_plain &= not federation.local.personal  # what clients keep between rounds stays in one process
    return is_plain and federation.kind != "logits" and federation.rounds * federation.cohort_size >= WORTH


def _setting_of(place: tuple[str, int]) -> Setting:
    folder, seed = place
    return build(read_resolved(Path(folder) / "scenario.toml"), seed=seed).setting


def _accuracies(built: Built, scenario: Scenario) -> Accuracies | None:
    if built.heldout is None or scenario.federation.rounds < 2:
        return None
    return Accuracies(setting=built.setting, heldout=built.heldout, rounds=scenario.federation.rounds)


def _crafting(group: Group, scenario: Scenario, built: Built, log: Log) -> "_Crafting | Refusal | None":
    """The server of the group's active attack, or why that cannot run; None: its attacks are passive."""
    if group.active is None:
        return None
    spec = scenario.attacks[group.active]
    attack = attack_of(spec)
    grants = collect_grants(built, log.transcript(), {})
    if refusal := find_refusal(attack, spec.name, built.threat, grants, built.setting.terms):
        return refusal
    rng = Rng.root(scenario.attack_seed).child(f"attack/{spec.name}")
    allowed = declared_grants(attack, grants)
    return _Crafting(attack=attack, built=built, log=log, grants=allowed, rng=rng, device=group.device)


@final
@dataclass(kw_only=True, eq=False)
class _Crafting:
    """A :class:`glasshouse.interfaces.Tamper`: an attack crafts the server's messages in attacked rounds.

    Args:
        attack: of a malicious server.
        built: the federation.
        log: of its messages so far.
        grants: those that the attack declares.
        rng: of the attack.
        device: where it crafts.
        memory: what the attack keeps for its later calls.
        seconds: CPU time that it took so far.
    """

    attack: Attack
    built: Built
    log: Log
    grants: Grants
    rng: Rng
    device: str
    memory: dict[str, Tensor] = field(default_factory=dict)
    seconds: float = 0.0

    def __call__(self, number: int) -> Crafted | None:
        """The messages of a round; None: the honest ones.

        Raises:
            Inapplicable: any error of the attack, as the refusal of this group.
        """
        started = processor_time()
        try:
            return self._craft(number)
        finally:
            self.seconds += processor_time() - started

    def _craft(self, number: int) -> Crafted | None:
        attack, log = self.attack, self.log
        if not isinstance(attack, ActiveAttack) or number not in self.built.attacked or log.pending is None:
            return None
        before, threat = log.transcript(), self.built.threat
        known: dict[str, Any] = {"grants": self.grants, "own": log.servers, "memory": self.memory}
        # Before the first broadcast there is no past that a view could be cut to.
        sent = any(record.broadcasts for record in before.rounds)
        past = cut(before, threat=threat, **known).rounds if sent else ()
        rounds = (*past, RoundView(round=number, broadcast=log.pending))
        view = View(terms=log.terms, threat=threat, rounds=rounds, **known)
        rng, craft = self.rng.child(f"craft/{number}"), attack.craft
        crafted = call_on(
            self.device,
            lambda place: copy_to(craft(copy_to(view, place), rng=rng), "cpu"),
            subject=f"attack '{type(attack).__name__}' while it crafted round {number}",
        )
        # A federation that went on without the crafted model would be an honest one, so it ends here.
        if isinstance(crafted, Refusal):
            raise Inapplicable(crafted.subject, needs=crafted.needs, got=crafted.got, fix=crafted.fix)
        if crafted is not None:
            self.memory.update(crafted.memory)
        return crafted


def file_group(
    folder: Path,
    built: Built,
    recorder: BothSides,
    writer: TranscriptWriter,
    *,
    memory: Mapping[str, Tensor],
    refusal: Refusal | None = None,
) -> None:
    """Write messages and ground truth of a federation below ``folder``; if refused, only the ground truth."""
    log = recorder.log
    transcript = log.transcript()
    write_truth(
        Truth(
            private=built.setting.private,
            shards={c: tuple(rows.tolist()) for c, rows in enumerate(built.setting.shards)},
            used=recorder.used,
            marked=built.marked,
            arrived=recorder.arrived,
        ),
        folder / "truth",
    )
    write_tensors(folder / "truth" / "scoring.safetensors", built.scoring)
    # Without the attack's own models the messages are of a federation that nobody asked about.
    if refusal is not None:
        shutil.rmtree(folder / "transcript", ignore_errors=True)
        return
    writer.finish(transcript)
    write_own(log.servers, folder / "own")
    write_grants(collect_grants(built, transcript, recorder.used), folder / "grants")
    (folder / "adversary").mkdir(exist_ok=True)
    if memory:
        write_tensors(folder / "adversary" / "memory.safetensors", memory)


def utility_of(built: Built, final: Mapping[str, Tensor]) -> dict[str, float] | None:
    """Held-out accuracy of the model ``final``; None: it is not measured."""
    if built.heldout is None:
        return None
    model = built.setting.build(built.setting.terms.architecture)
    model.load_state_dict(dict(final))
    right = share_right(model, built.heldout).numpy()
    return utility_row(right, built.heldout, task_of(model))


def _as_sent(built: Built, log: Log) -> dict[str, float] | None:
    """Held-out accuracy of a malicious server's model; None if it is not of the agreed architecture."""
    broadcasts = [b for r in log.transcript().rounds if r.round in built.attacked for b in r.broadcasts]
    agreed = built.setting.terms.architecture
    if built.heldout is None or not broadcasts or broadcasts[0].architecture != agreed:
        return None
    model = built.setting.build(agreed)
    model.load_state_dict({**built.setting.start, **broadcasts[0].tensors})
    right = share_right(model, built.heldout).numpy()
    return {"value": float(right.mean()), "n": len(built.heldout)}
