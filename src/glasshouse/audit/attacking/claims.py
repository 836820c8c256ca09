"""Claims on disk: one folder per attack and unit, ``claims.json`` written last.

A unit is the scope of one call of an attack: one update, one round, or the run. A folder without
``claims.json`` is unfinished and its unit is run again on ``--resume``.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, final

import torch
from torch import Tensor

from glasshouse.attacks.base import About, Claim, tensors_of
from glasshouse.errors import BadFile
from glasshouse.outside import limits
from glasshouse.outside.files import plain_file, printable, reason
from glasshouse.registry import load
from glasshouse.store import read_json, read_tensors, write_json, write_tensors
from glasshouse.wire import Refusal


@final
@dataclass(frozen=True, kw_only=True)
class Unit:
    """The scope of one call of an attack; ``rounds`` empty: the whole run."""

    rounds: tuple[int, ...] = ()
    client: int | None = None

    @property
    def name(self) -> str:
        """The name of the unit's folder and of its random stream."""
        rounds = "-".join(map(str, self.rounds)) or "run"
        return f"round{rounds}" + ("" if self.client is None else f"-client{self.client}")

    @classmethod
    def named(cls, name: str) -> "Unit":
        """Parse the unit from the name of its folder.

        Raises:
            BadFile: a folder with another name.

        Examples:
            >>> Unit.named("round0-3-client7"), Unit.named("roundrun").rounds
            (Unit(rounds=(0, 3), client=7), ())
        """
        parts = re.fullmatch(r"round(run|[0-9]{1,9}(?:-[0-9]{1,9})*)(?:-client([0-9]{1,9}))?", name)
        if parts is None:
            raise BadFile(
                f"unit '{printable(name)}' of a run",
                needs="a folder named by its rounds, as round3-client1",
                got="another name",
                fix="get the run again",
            )
        numbers = () if parts[1] == "run" else tuple(int(r) for r in parts[1].split("-"))
        return cls(rounds=numbers, client=None if parts[2] is None else int(parts[2]))


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Outcome:
    """An attack's claims about one unit, or its refusal, with its running time, notes and loss curve.

    ``uninformed``: its claims about the same unit without any upload, one more null adversary.
    """

    claims: tuple[Claim, ...] = ()
    uninformed: tuple[Claim, ...] = ()
    refusal: Refusal | None = None
    seconds: float = 0.0
    notes: tuple[str, ...] = ()
    curve: tuple[tuple[int, float], ...] = ()


def write_outcome(outcome: Outcome, folder: Path) -> None:
    """Write one unit's outcome into ``folder``."""
    folder.mkdir(parents=True, exist_ok=True)
    lines = [_file(claim, folder, str(i)) for i, claim in enumerate(outcome.claims)]
    uninformed = [_file(claim, folder, f"uninformed-{i}") for i, claim in enumerate(outcome.uninformed)]
    remarks = {
        **({"uninformed": uninformed} if uninformed else {}),
        "refusal": asdict(outcome.refusal) if outcome.refusal else None,
        "seconds": outcome.seconds,
        "notes": list(outcome.notes),
        "curve": [point for point in outcome.curve if math.isfinite(point[1])],
    }
    write_json(folder / "claims.json", {"claims": lines, **remarks})


def _file(claim: Claim, folder: Path, name: str) -> dict[str, Any]:
    """Write a claim's tensors under ``name``; return its line in ``claims.json``."""
    if tensors := tensors_of(claim):
        write_tensors(folder / f"{name}.safetensors", tensors)
    about = asdict(claim.about)
    return {"kind": claim.kind, "about": about, "tensors": sorted(tensors), "plain": _plain(claim)}


def read_outcome(folder: Path) -> Outcome:
    """Read what :func:`write_outcome` wrote.

    Raises:
        BadFile: missing, damaged, not regular files, or claims with fields that their kind does not have.
    """
    subject = f"claims in '{folder}'"
    raw = read_json(plain_file(folder, "claims.json", subject=subject), most=limits.JSONL_BYTES)
    try:
        claims = tuple(_claim(line, folder, str(i)) for i, line in enumerate(raw["claims"]))
        uninformed = enumerate(raw.get("uninformed", ()))
        refusal = Refusal(**raw["refusal"]) if raw["refusal"] else None
        return Outcome(
            claims=claims,
            uninformed=tuple(_claim(line, folder, f"uninformed-{i}") for i, line in uninformed),
            refusal=refusal,
            seconds=float(raw["seconds"]),
            notes=tuple(str(note) for note in raw.get("notes", ())),
            curve=tuple((int(step), float(loss)) for step, loss in raw.get("curve", ())),
        )
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise BadFile(
            subject,
            needs="claims as an attack's outcome is written",
            got=f"{type(error).__name__}: {reason(error)}",
            fix="get the run again, or run the audit again",
        ) from error


def _claim(line: Mapping[str, Any], folder: Path, name: str) -> Claim:
    about = About(rounds=tuple(line["about"]["rounds"]), client=line["about"]["client"])
    tensors: dict[str, Tensor] = {}
    if line["tensors"]:
        subject = f"claims in '{folder}'"
        tensors = read_tensors(plain_file(folder, f"{name}.safetensors", subject=subject))
    claim: Claim = load("claims", line["kind"])(about=about, **_join_fields(line["plain"], tensors))
    return claim


def _plain(claim: Claim) -> dict[str, Any]:
    """The fields of a claim that JSON can represent; of mappings, the entries that are not tensors."""
    plain: dict[str, Any] = {}
    for f in fields(claim):
        value = getattr(claim, f.name)
        if isinstance(value, Mapping):
            plain[f.name] = {key: item for key, item in value.items() if not isinstance(item, Tensor)}
        elif f.name != "about" and not isinstance(value, Tensor):
            plain[f.name] = value
    return plain


def _join_fields(plain: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> dict[str, Any]:
    """The fields of a claim from both of its files."""
    values = dict(plain)
    for name, tensor in tensors.items():
        owner, _, key = name.partition(".")
        if key:
            values[owner] = {**values.get(owner, {}), key: tensor}
        else:
            values[name] = tensor
    return values


def is_finished(folder: Path) -> bool:
    """Whether the unit was completed."""
    return (folder / "claims.json").is_file()


def same_claims(left: tuple[Claim, ...], right: tuple[Claim, ...]) -> bool:
    """Whether two outcomes make exactly the same claims."""

    def outlines(claims: tuple[Claim, ...]) -> list[tuple[Any, ...]]:
        return [(type(c), c.about, _plain(c), sorted(tensors_of(c))) for c in claims]

    def tensors(claims: tuple[Claim, ...]) -> list[Tensor]:
        return [tensor for c in claims for _, tensor in sorted(tensors_of(c).items())]

    return outlines(left) == outlines(right) and all(map(torch.equal, tensors(left), tensors(right)))
