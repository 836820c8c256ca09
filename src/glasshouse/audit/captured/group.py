"""One group of an audit on disk: its federation simulated, or taken from a capture."""

import time
from collections.abc import Mapping
from pathlib import Path

from torch import Tensor

from glasshouse.audit.captured.build import build_captured
from glasshouse.audit.captured.terms import check_terms
from glasshouse.audit.hashes import write_hashes
from glasshouse.audit.simulation.group import Group, file_group, simulate, utility_of
from glasshouse.audit.simulation.record import GroupRecord, has_record, write_record
from glasshouse.audit.simulation.recorder import BothSides
from glasshouse.scenario.load import read_resolved
from glasshouse.scenario.spec import Scenario
from glasshouse.store import read_tensors
from glasshouse.transcript.files import read_own, read_transcript
from glasshouse.transcript.record import Log
from glasshouse.truth.record import read_truth


def record(group: Group) -> str:
    """File one group's federation; returns its folder. Finished groups are kept."""
    scenario = read_resolved(Path(group.folder) / "scenario.toml")
    if not scenario.captured:
        return simulate(group)
    if not has_record(Path(group.folder)):
        _take(scenario, group)
    return group.folder


def _take(scenario: Scenario, group: Group) -> None:
    started = time.process_time()
    folder, capture = Path(group.folder), Path(scenario.captured)
    transcript = read_transcript(capture / "transcript", trust_factory=True)
    built = build_captured(scenario, transcript, seed=group.seed)
    own = read_own(capture / "own")
    log = Log(terms=transcript.terms, rounds={r.round: r for r in transcript.rounds}, servers=own)
    used = read_truth(capture / "truth").used if (capture / "truth").is_dir() else {}
    file_group(folder, built, BothSides(log=log, used=dict(used)), _memory(capture), None)
    write_hashes(folder)
    last = [b for r in transcript.rounds for b in r.broadcasts if b.client is None][-1]
    agreed = last.architecture == transcript.terms.architecture
    write_record(
        GroupRecord(
            seed=group.seed,
            active=None,
            refusal=None,
            utility=utility_of(built, last.tensors) if agreed else None,
            sent=None,
            curve=(),
            parties=(),
            entropies={},
            rounds=scenario.federation.rounds,
            seconds=time.process_time() - started,
            facts=built.facts,
            terms=check_terms(capture, transcript, built.setting),
        ),
        folder,
    )


def _memory(capture: Path) -> Mapping[str, Tensor]:
    """What an active server remembered of the models that it crafted."""
    path = capture / "adversary" / "memory.safetensors"
    return read_tensors(path) if path.is_file() else {}
