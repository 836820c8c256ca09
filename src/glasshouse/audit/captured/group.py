"""Record one group of an audit: its federation is simulated, copied from another group, or captured."""

import math
import shutil
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Final

from glasshouse.audit.captured.build import build_captured, truth_of
from glasshouse.audit.captured.origins import ASSUMED, COUNTED, read_origins
from glasshouse.audit.captured.terms import TOLERANCE, check_terms
from glasshouse.audit.defenses.check import check_defenses
from glasshouse.audit.defenses.declared import Judged
from glasshouse.audit.provenance.hashes import recorded_files, write_hashes
from glasshouse.audit.simulation.group import Group, file_group, simulate, utility_of
from glasshouse.audit.simulation.monitor import BothSides
from glasshouse.audit.simulation.record import (
    GroupRecord,
    TermsCheck,
    has_record,
    read_record,
    write_record,
)
from glasshouse.errors import BadFile, Inapplicable
from glasshouse.formats.base import read_document
from glasshouse.formats.carried import NAME, bytes_of
from glasshouse.formats.records import Survival
from glasshouse.outside import limits
from glasshouse.scenario.load import read_resolved
from glasshouse.scenario.spec import Scenario
from glasshouse.transcript.files import TranscriptWriter, read_memory, read_own, read_transcript
from glasshouse.transcript.record import Log, Transcript
from glasshouse.wire import Dropout, Kind, Mechanism, Update

_NAMED: Final = 3
"""Largest number of failed answers that a note names."""
_DECLARED: Final[Mapping[Kind, str]] = {"document": "Declared: the protocol, its settings and the columns."}
_ROUNDS: Final = 20
"""Number of rounds examined, enough of a client's updates to estimate a defence's strength."""


def record(group: Group) -> str:
    """Write one group's federation and return its folder. Finished groups are kept."""
    scenario = read_resolved(Path(group.folder) / "scenario.toml")
    if has_record(Path(group.folder)):
        return group.folder
    if scenario.captured:
        _record_capture(scenario, group)
    elif group.same_as:
        _copy(group)
    else:
        simulate(group)
    return group.folder


def _copy(group: Group) -> None:
    """Copy the federation of another group without its claims; by hard links where possible."""
    source, folder = Path(group.same_as), Path(group.folder)
    for name in recorded_files(source):
        path, place = source / name, folder / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.unlink(missing_ok=True)
        try:
            place.hardlink_to(path)
        except OSError:
            shutil.copyfile(path, place)
    write_record(replace(read_record(source), seconds=0.0), folder)


def _record_capture(scenario: Scenario, group: Group) -> None:
    started = time.process_time()
    folder, capture = Path(group.folder), Path(scenario.captured)
    transcript = without_unread(read_transcript(capture / "transcript", trust_factory=True))
    federation = build_captured(scenario, transcript, seed=group.seed)
    own = read_own(capture / "own")
    log = Log(terms=transcript.terms, servers=own)
    for message in (message for record in transcript.rounds for message in record.messages()):
        log.record(message)
    truth = truth_of(capture, transcript.terms.architecture)
    file_group(
        folder,
        federation,
        BothSides(log=log, used=dict(truth.used)),
        TranscriptWriter(folder=folder / "transcript"),
        memory=read_memory(capture / "adversary"),
    )
    write_hashes(folder)
    checked = check_terms(capture, transcript, truth)
    defenses = _defense_notes(transcript, [defense.describe() for defense in federation.setting.defenses])
    last = [b for r in transcript.rounds for b in r.broadcasts if b.client is None][-1]
    raw = transcript.terms.options.get("units") == "raw"  # trees over numbers that no model here is given
    agreed = last.architecture == transcript.terms.architecture
    write_record(
        GroupRecord(
            seed=group.seed,
            utility=utility_of(federation, last.tensors) if agreed and not raw else None,
            measured=transcript.terms.architecture.task.utility,
            rounds=scenario.federation.rounds,
            seconds=time.process_time() - started,
            facts=replace(
                federation.facts,
                notes=(
                    *federation.facts.notes,
                    *_notes(checked, read_origins(capture), transcript.terms.sends),
                    *_left_out(transcript),
                    *_sent_raw(transcript),
                    *defenses,
                ),
            ),
            terms=checked,
        ),
        folder,
    )


def without_unread(transcript: Transcript) -> Transcript:
    """``transcript`` with clients whose document nobody can read as dropouts, so that the others are audited.

    A claim of nothing about them would count as a victim about whom nothing comes out.
    """
    rounds = []
    for record in transcript.rounds:
        faults = {u.client: fault for u in record.updates if u.kind == "document" and (fault := _fault(u))}
        lost = (Dropout(round=record.round, client=c, reason=reason) for c, reason in faults.items())
        kept = tuple(u for u in record.updates if u.client not in faults)
        rounds.append(replace(record, updates=kept, dropouts=(*record.dropouts, *lost)))
    return replace(transcript, rounds=tuple(rounds))


def _fault(update: Update) -> str:
    """Why a client's document cannot be read; empty: it can."""
    try:
        read_document(bytes_of(update.tensors[NAME]))
    except BadFile as error:
        return f"sent a document that is not read: needs {error.needs}; got {error.got}"[: limits.TEXT]
    return ""


def _origin_words(origins: Mapping[str, str]) -> str:
    """Where the terms come from, what was assumed last, in a sentence; empty: the capture does not say."""
    keys: dict[str, list[str]] = {}
    for key, origin in origins.items():
        keys.setdefault("" if key == COUNTED else origin, []).append(key)
    said = [f"{origin}: {', '.join(keys[origin])}" for origin in sorted(keys, key=ASSUMED.__eq__) if origin]
    counted = [f" {origins[COUNTED]}."] if COUNTED in origins else []
    return f"Terms: {'; '.join(said)}.{''.join(counted)}" if said else ""


def _notes(checked: TermsCheck, origins: Mapping[str, str], sends: Kind) -> tuple[str, ...]:
    """Notes on the origin of the facts about the federation."""
    origin = (
        "This federation ran: its messages were captured. Observed: clients, cohort, rounds, what they send. "
        + (
            _origin_words(origins)
            or _DECLARED.get(sends, "Declared: epochs, batches, learning rate, optimizer.")
        )
    )
    if sends == "document":
        return (origin,)
    if not checked.n:
        return (origin, "Nobody recorded what clients trained on: the declared training is not checked.")
    tested = f"{checked.n} updates of test clients, trained again on the batches that they recorded"
    if checked.suspect:
        advice = f" Next, {checked.advice}" if checked.advice else ""
        if checked.since:
            before = f"The declared training is the real one before round {checked.since} only"
            return (
                origin,
                f"{before}: {checked.suspect} ({tested}). No attack repeats later ones.",
            )
        return (origin, f"The declared training is not the real one: {checked.suspect} ({tested}).{advice}")
    error = f"the largest error is {checked.error:.1e} of the change"
    return (
        origin,
        f"The declared training is the real one: {error} ({tested}; rounding is below {TOLERANCE:g}).",
    )


def _left_out(transcript: Transcript) -> tuple[str, ...]:
    """Which clients gave an error instead of a usable update, in one sentence."""
    failed = [d for record in transcript.rounds for d in record.dropouts if d.reason]
    if not failed:
        return ()
    told = "; ".join(f"client {d.client} in round {d.round}: {d.reason}" for d in failed[:_NAMED])
    more = f"; and {len(failed) - _NAMED} more" if len(failed) > _NAMED else ""
    return (f"Left out, the others are audited: {told}{more}.",)


def _sent_raw(transcript: Transcript) -> tuple[str, ...]:
    """Which clients sent people one by one, in one sentence: a verdict for which nobody has to attack."""
    raw = Counter[int]()
    for update in (u for record in transcript.rounds for u in record.updates if u.kind == "document"):
        _, document = read_document(bytes_of(update.tensors[NAME]))
        if isinstance(document, Survival) and document.raw:
            raw[update.client] = max(raw[update.client], document.patients)
    if not raw:
        return ()
    told = (
        f"Raw: {len(raw)} clients sent time and outcome of every person, {sum(raw.values())} people in all."
    )
    return (f"{told} Whoever reads these messages has the data; no attack is needed.",)


def _defense_notes(transcript: Transcript, declared: Sequence[Mechanism]) -> tuple[str, ...]:
    """One sentence for each declared defence, and for each one observed but not declared.

    Args:
        transcript: of the capture.
        declared: the defences that every client runs according to the scenario.
    """
    try:
        rows = check_defenses(replace(transcript, rounds=transcript.rounds[:_ROUNDS]), declared)
    except Inapplicable as error:
        return (f"Which defences ran is not checked: {error.needs}; got {error.got}.",)
    if not rows:
        return ("No defence is declared, and no update shows one.",)
    alike: dict[tuple[object, ...], list[Judged]] = {}
    for row in rows:
        alike.setdefault((row.defense, row.setting, str(row.declared), row.ruling), []).append(row)
    return tuple(_sentence(group) for group in alike.values())


def _sentence(rows: Sequence[Judged]) -> str:
    """The ruling on one setting of one defence, for the clients with the same ruling."""
    first = rows[0]
    stated = "" if math.isnan(first.declared) else f" declared {first.declared:.4g},"
    observations = [row.observation for row in rows]
    values = [one.value for one in observations if one.state == "on" and not math.isnan(one.value)]
    observed = f" observed {median(values):.4g}," if values else ""
    clients = sum(row.client is not None for row in rows)
    where = f" at {clients} client{'s' * (clients != 1)}" if clients else ""
    name = f"{first.defense}, {first.setting}" if first.setting else first.defense
    return f"Defence check: {name}:{stated}{observed} {first.ruling}{where} ({first.reason})."
