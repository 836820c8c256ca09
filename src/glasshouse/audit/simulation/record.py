"""The record of one group, ``group.json``."""

import shlex
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
    """Facts about data, model and guarantee for the report.

    Attributes:
        data: dataset and roles, in words.
        public: the private images may be shown.
        things: what examples are, in the plural ("pictures").
        model: name and size, in words.
        guarantee: of the defences over the whole federation; None: nothing is proved.
        notes: what to know of the federation; of a capture the declared terms, and whether they are correct.
        pretrained: accuracy of the public model as ``natural``, ``n``, ``robust``, ``n_robust``; None: not
            measured.
    """

    data: str
    public: bool
    model: str
    guarantee: Guarantee | None = None
    notes: tuple[str, ...] = ()
    pretrained: Mapping[str, Any] | None = None
    things: str = ""


@final
@dataclass(frozen=True, kw_only=True)
class TermsCheck:
    """Comparison of the declared terms of a real federation with the training of test clients.

    Attributes:
        n: number of updates whose training was repeated on the recorded batches; 0: none were recorded.
        error: the largest difference, relative to the change by training.
        suspect: the term that is probably wrong, in words; empty: the terms reproduce the updates.
        fix: the assignment that corrects it, as for ``glasshouse terms --set``; empty: unknown.
        since: the first round whose training the terms do not reproduce; 0: from the start.
    """

    n: int
    error: float
    suspect: str
    fix: str = ""
    since: int = 0

    @property
    def advice(self) -> str:
        """What to do about a wrong term."""
        parts = [shlex.quote(one) for one in self.fix.split(" --set ") if one]
        return "correct the terms: glasshouse terms CAPTURE --set " + " --set ".join(parts) if parts else ""


@final
@dataclass(frozen=True, kw_only=True)
class GroupRecord:
    """One simulated group.

    Attributes:
        seed: of this repetition.
        active: position of the active attack in the scenario; None: the passive ones.
        refusal: why the federation could not be simulated; None: it was.
        utility: what the task scores on held-out data at the end as ``value``, ``low``, ``high``, ``n``, and
            ``chance``, that of always giving the most common answer; None: not measured.
        sent: held-out accuracy of the model that an active server sent, ``value`` and ``n``; None: there is
            no such model, or it is of another architecture.
        curve: (round, held-out accuracy of the global model) during training.
        parties: accuracy per round and kind of party, in logit protocols.
        entropies: of the latest predictions in logit protocols, by party and dataset.
        guard: decisions of the clients' guards, one mapping each: round, client, ``about`` (model or update),
            findings, ``outcome``.
        rounds: of the federation.
        seconds: CPU time of the simulation.
        crafting: the part of it in which the attack crafted messages.
        facts: for the report.
        terms: check of the declared terms; None: a simulation, whose terms are real.
        measured: name of what ``utility`` is, as the task says it.
    """

    seed: int
    active: int | None = None
    refusal: Refusal | None = None
    utility: Mapping[str, Any] | None = None
    sent: Mapping[str, Any] | None = None
    curve: tuple[tuple[int, float], ...] = ()
    parties: tuple[Mapping[str, Any], ...] = ()
    entropies: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    rounds: int
    seconds: float
    facts: Facts
    terms: TermsCheck | None = None
    guard: tuple[Mapping[str, Any], ...] = ()
    crafting: float = 0.0
    measured: str = "accuracy"


_SCHEMA: Final = TypeAdapter(GroupRecord)


def write_record(record: GroupRecord, folder: Path) -> None:
    """Write ``group.json`` below ``folder``."""
    write_json(folder / NAME, asdict(record))


def has_record(folder: Path) -> bool:
    """Whether the group in ``folder`` is finished."""
    return (folder / NAME).is_file()


def read_record(folder: Path) -> GroupRecord:
    """Read what :func:`write_record` wrote."""
    return _SCHEMA.validate_python(read_json(folder / NAME))
