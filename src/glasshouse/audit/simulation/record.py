"""What is known of one simulated group beside its files: ``group.json``, as a typed record."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final, final

from pydantic import TypeAdapter

from glasshouse.federation.defenses.guarantee import Guarantee
from glasshouse.store import read_json, write_json
from glasshouse.wire import Refusal

NAME: Final = "group.json"


@final
@dataclass(frozen=True, kw_only=True)
class Facts:
    """What the report says of data, model and protection.

    Attributes:
        data: data set and roles, in words.
        public: the private images may be shown.
        model: name and size, in words.
        guarantee: what the defences prove over the whole federation; None: nothing.
        notes: of a capture, what is declared and whether that is so.
        pretrained: accuracy of the public model as ``natural``, ``n``, ``robust``, ``n_robust``; None: it was
            not measured.
    """

    data: str
    public: bool
    model: str
    guarantee: Guarantee | None = None
    notes: tuple[str, ...] = ()
    pretrained: Mapping[str, float] | None = None


@final
@dataclass(frozen=True, kw_only=True)
class TermsCheck:
    """Declared terms of a federation that ran, held against what test clients' training gave.

    Attributes:
        n: updates that were trained again on the recorded batches; 0: nobody recorded any.
        error: the largest difference, as a share of the change that training made.
        suspect: what is likely wrong, in words; empty: the terms reproduce the updates.
    """

    n: int
    error: float
    suspect: str


@final
@dataclass(frozen=True, kw_only=True)
class GroupRecord:
    """One simulated group.

    Attributes:
        seed: of this repetition.
        active: position of the active attack in the scenario; None: the passive ones.
        refusal: why the federation could not be simulated; None: it was.
        utility: held-out accuracy at the end as ``value``, ``low``, ``high``, ``n``, and ``chance``, what the
            most common answer alone gets; None: not measured.
        sent: held-out accuracy of the model that an active server sent, ``value`` and ``n``; None: there is
            no such model, or it is of another architecture.
        curve: (round, held-out accuracy of the global model) while it was trained.
        parties: accuracy per round and kind of party, in logit protocols.
        entropies: of the last predictions there, by party and data.
        guard: what the clients' guards decided, a mapping each: round, client, ``about`` (model or update),
            findings, ``outcome``.
        rounds: of the federation.
        seconds: processor time of the simulation.
        facts: for the report.
        terms: are the declared terms the real ones; None: a simulation, where they are.
    """

    seed: int
    active: int | None = None
    refusal: Refusal | None = None
    utility: Mapping[str, float] | None = None
    sent: Mapping[str, float] | None = None
    curve: tuple[tuple[int, float], ...] = ()
    parties: tuple[Mapping[str, Any], ...] = ()
    entropies: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    rounds: int
    seconds: float
    facts: Facts
    terms: TermsCheck | None = None
    guard: tuple[Mapping[str, Any], ...] = ()


_SCHEMA: Final = TypeAdapter(GroupRecord)


def write_record(record: GroupRecord, folder: Path) -> None:
    """Write ``group.json`` below ``folder``."""
    write_json(folder / NAME, asdict(record))


def has_record(folder: Path) -> bool:
    """Whether the group in ``folder`` was finished."""
    return (folder / NAME).is_file()


def read_record(folder: Path) -> GroupRecord:
    """Read what :func:`write_record` wrote."""
    record: GroupRecord = _SCHEMA.validate_python(read_json(folder / NAME))
    return record
