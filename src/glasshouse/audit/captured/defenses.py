"""Describe which defences ran in a captured federation, in sentences for the report."""

import math
from collections.abc import Sequence
from dataclasses import replace
from statistics import median
from typing import Final

from glasshouse.audit.defenses.check import check_defenses
from glasshouse.audit.defenses.declared import Judged
from glasshouse.errors import Inapplicable
from glasshouse.transcript.record import Transcript
from glasshouse.wire import Mechanism

_ROUNDS: Final = 20
"""Number of rounds examined, enough of a client's updates to estimate a defence's strength."""


def defense_notes(transcript: Transcript, declared: Sequence[Mechanism]) -> tuple[str, ...]:
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
    values = [row.seen.value for row in rows if row.seen.state == "on" and not math.isnan(row.seen.value)]
    observed = f" observed {median(values):.4g}," if values else ""
    clients = sum(row.client is not None for row in rows)
    where = f" at {clients} client{'s' * (clients != 1)}" if clients else ""
    name = f"{first.defense}, {first.setting}" if first.setting else first.defense
    return f"Defence check: {name}:{stated}{observed} {first.ruling}{where} ({first.reason})."
