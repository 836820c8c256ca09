"""How many bytes an audit leaves on the disk, said before it starts: messages, truth and grants.

An estimate, mostly from above: the messages are counted as float32, defences may send fewer numbers, and
equal tensors of two cells may share a file.
"""

import math
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

from glasshouse.audit.plan import Plan
from glasshouse.audit.preflight.outlook import Outlook, fault_of, without_memory
from glasshouse.audit.simulation.deal import SPARE_NUMBERS, most_spare
from glasshouse.cache import once
from glasshouse.errors import DiskFull
from glasshouse.models.build import build
from glasshouse.scenario.requirements import distractors
from glasshouse.scenario.spec import Scenario
from glasshouse.wire import Architecture

FLOAT: Final = 4
"""Bytes of a number."""


def bytes_of(plans: Iterable[Plan], looks: Mapping[str, Outlook]) -> int:
    """Bytes of all federations that the plans record; copies of another cell's are links to its files.

    Args:
        plans: of the cells.
        looks: what is known of each of them, by its hash.
    """
    return sum(
        _of_federation(looks[p.cell.hash])
        for p in plans
        for group in p.groups
        if not (group.same_as or p.cell.scenario.captured)
    )


def require_room(plans: Iterable[Plan], looks: Mapping[str, Outlook], out: Path) -> None:
    """Refuse an audit that its disk has no room for.

    Raises:
        DiskFull: fewer bytes are free than it is to leave.
    """
    place = next(folder for folder in (out, *out.parents) if folder.exists())
    needed, free = bytes_of(plans, looks), shutil.disk_usage(place).free
    if needed > free:
        raise DiskFull(
            f"run directory '{out}'",
            needs=f"room for some {in_words(needed)}: what is sent, the truth, and what is granted",
            got=f"{in_words(free)} free",
            fix="make room, give another --out, or lower data.heldout, audit.blocks or federation.keep",
        )


def in_words(count: int) -> str:
    """A number of bytes, rounded up to two digits.

    Examples:
        >>> in_words(999), in_words(1_230_000), in_words(68_000_000_000)
        ('1 kB', '1.3 MB', '68 GB')
    """
    size, unit = next((s, u) for s, u in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")) if count >= s or u == "kB")
    number = count / size
    return f"{math.ceil(number) if number >= 10 or unit == 'kB' else math.ceil(10 * number) / 10:g} {unit}"


def _of_federation(outlook: Outlook) -> int:
    scenario, survey, network = outlook.scenario, outlook.survey, outlook.agreed
    if survey is None:
        return 0
    values, data, federation = math.prod(survey.shape), scenario.data, scenario.federation
    spare = max(0, min(SPARE_NUMBERS // max(1, values), most_spare(scenario)) - data.heldout)
    # Auxiliary examples lie beside the truth, for guesses, and among the grants.
    examples = federation.clients * data.examples + 2 * data.auxiliary + data.heldout + spare
    numbers = (examples + distractors(scenario)) * values
    if network is not None and fault_of(network) is None:
        size = once(["parameters", repr(network)], lambda: _parameters(network))
        senders = 1 if federation.secure_sum else federation.cohort_size
        numbers += _kept_rounds(scenario) * (1 + senders) * size
    return FLOAT * numbers


def _kept_rounds(scenario: Scenario) -> int:
    kept = scenario.federation.keep.rounds
    if kept == "all":
        return scenario.federation.rounds
    return len(scenario.audit.rounds if kept == "attacked" else kept)


def _parameters(network: Architecture) -> int:
    try:
        with without_memory(network):
            return sum(p.numel() for p in build(network).parameters())
    except NotImplementedError:
        return 0
