"""Check of declared defences against the updates that a run's clients sent."""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, final

from glasshouse.audit.defenses.check import SERVER_NOISE, check_defenses
from glasshouse.audit.defenses.declared import FAULTS, Judged
from glasshouse.errors import BadFile, BadValue
from glasshouse.outside.files import path_of
from glasshouse.registry import create, load
from glasshouse.scenario.load import read_resolved
from glasshouse.scenario.overrides import PathError, split_assignment
from glasshouse.transcript.files import read_grants, read_transcript
from glasshouse.wire import Mechanism, Terms

__all__ = ["CheckedDefenses", "defenses"]


@final
@dataclass(frozen=True, kw_only=True)
class CheckedDefenses:
    """The checked defences of one federation.

    Attributes:
        name: of its folder.
        terms: of the federation.
        rows: the server's first (client None), then those of each client.
    """

    name: str
    terms: Terms
    rows: tuple[Judged, ...]

    @property
    def faults(self) -> tuple[Judged, ...]:
        """Declared defences that are off, misconfigured, on in some updates only, or never effective."""
        return tuple(row for row in self.rows if row.ruling in FAULTS)

    def plain(self) -> list[dict[str, Any]]:
        """Rows for JSON; unknown numbers are None."""
        return [{"federation": self.name, **_known(asdict(row))} for row in self.rows]


def defenses(
    run: str | Path,
    *,
    declared: Sequence[str] | None = None,
    files: Sequence[str | Path] = (),
    framework: str = "nvflare",
    trust_factory: bool = False,
) -> list[CheckedDefenses]:
    """Compare the defences that a run declares with its clients' updates.

    Args:
        run: a run directory, or a folder that contains ``transcript/``.
        declared: defences in words, as ``"clip norm=4"``, in the order in which they act; ``"server_noise
            std=0.1"`` is noise that the server adds to the mean. None: those of the run's scenario, else of
            its grants.
        files: configurations of a framework that declare filters; replace what the run says.
        framework: whose they are: ``glasshouse list declarations``.
        trust_factory: build an architecture ``module:factory`` that the run names.

    Returns:
        One entry per simulated cell, or one.

    Raises:
        BadFile: there is no transcript, or it cannot be read.
        BadValue: a declaration that cannot be parsed, or has invalid settings.
        Inapplicable: the clients send logits.
    """
    folder = path_of(run, "run")
    groups = [folder, *sorted((folder / "cells").glob("*"))]
    groups = [group for group in groups if (group / "transcript").is_dir()]
    if not groups:
        raise BadFile(
            f"run '{folder}'",
            needs="a folder transcript/, or cells/ with one each",
            got="neither",
            fix="give the folder that an audit or a capture wrote",
        )
    checked = []
    for group in groups:
        transcript = read_transcript(group / "transcript", trust_factory=trust_factory)
        stated = _recorded(group) if declared is None and not files else map(_parse, declared or ())
        mechanisms, rows = list(stated), list[Judged]()
        if files:
            read = load("declarations", framework)().read([Path(file) for file in files], transcript)
            mechanisms, rows = [*mechanisms, *read[0]], read[1]
        rows = [*rows, *check_defenses(transcript, mechanisms)]
        checked.append(CheckedDefenses(name=group.name, terms=transcript.terms, rows=tuple(rows)))
    return checked


def _recorded(group: Path) -> list[Mechanism]:
    if (group / "scenario.toml").is_file():
        plugins = read_resolved(group / "scenario.toml").defenses
        return [create(load("defenses", p.name), p.arguments).describe() for p in plugins]
    if (group / "grants" / "grants.json").is_file():
        return list(read_grants(group / "grants").defense or ())
    return []


def _parse(text: str) -> Mechanism:
    try:
        name, *settings = text.split()
        arguments = dict(split_assignment(setting) for setting in settings)
    except (ValueError, PathError) as error:
        raise BadValue(
            "a declared defence",
            needs="a name and its settings, as 'clip norm=4'",
            got=f"'{text}'",
            fix="glasshouse list defenses",
        ) from error
    if name == SERVER_NOISE:
        if arguments.keys() != {"std"}:
            raise BadValue(
                f"declared '{SERVER_NOISE}'", needs="std=...", got=f"'{text}'", fix=f"{SERVER_NOISE} std=0.1"
            )
        return Mechanism(name=name, place="update", parameters=arguments)
    mechanism: Mechanism = create(load("defenses", name), arguments).describe()
    return mechanism


def _known(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _known(one) for key, one in value.items()}
    if isinstance(value, tuple | list):
        return [_known(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
