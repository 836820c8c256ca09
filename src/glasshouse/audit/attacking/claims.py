"""Claims on disk: one folder per attack and unit, ``claims.json`` written last.

A unit is what the harness calls an attack for: one update, one round, or the run. A folder without
its ``claims.json`` is unfinished and is run again on ``--resume``.
"""

from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, final

import torch
from torch import Tensor

from glasshouse.attacks.base import (
    About,
    Claim,
    ClassRepresentatives,
    ClientScores,
    DefenseGuess,
    DetectorReport,
    Draws,
    HeadReport,
    Labels,
    Reconstruction,
    Representations,
)
from glasshouse.store import read_json, read_tensors, write_json, write_tensors
from glasshouse.wire import Refusal

KINDS: dict[str, type[Any]] = {
    kind.__name__: kind
    for kind in (
        Reconstruction,
        Representations,
        ClassRepresentatives,
        Labels,
        ClientScores,
        DefenseGuess,
        Draws,
        DetectorReport,
        HeadReport,
    )
}


@final
@dataclass(frozen=True, kw_only=True)
class Unit:
    """What one call of an attack is about; ``rounds`` empty: the whole run."""

    rounds: tuple[int, ...] = ()
    client: int | None = None

    @property
    def name(self) -> str:
        """Names the unit's folder and its stream of randomness."""
        rounds = "-".join(map(str, self.rounds)) or "run"
        return f"round{rounds}" + ("" if self.client is None else f"-client{self.client}")


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Outcome:
    """What an attack said of one unit, or why it said nothing; with the seconds it took, and its notes."""

    claims: tuple[Claim, ...] = ()
    refusal: Refusal | None = None
    seconds: float = 0.0
    notes: tuple[str, ...] = ()


def write_outcome(outcome: Outcome, folder: Path) -> None:
    """Write one unit's outcome into ``folder``."""
    folder.mkdir(parents=True, exist_ok=True)
    lines = []
    for position, claim in enumerate(outcome.claims):
        values = {f.name: getattr(claim, f.name) for f in fields(claim)}
        tensors = {name: v for name, v in values.items() if isinstance(v, Tensor)}
        if tensors:
            write_tensors(folder / f"{position}.safetensors", tensors)
        plain = {n: v for n, v in values.items() if n not in tensors and n != "about"}
        lines.append(
            {"kind": type(claim).__name__, "about": asdict(claim.about), "tensors": sorted(tensors), **plain}
        )
    refusal = asdict(outcome.refusal) if outcome.refusal else None
    said = {"refusal": refusal, "seconds": outcome.seconds, "notes": list(outcome.notes)}
    write_json(folder / "claims.json", {"claims": lines, **said})


def read_outcome(folder: Path) -> Outcome:
    """Read what :func:`write_outcome` wrote."""
    raw = read_json(folder / "claims.json")
    claims = []
    for position, line in enumerate(raw["claims"]):
        kind = KINDS[line.pop("kind")]
        about = line.pop("about")
        tensors = read_tensors(folder / f"{position}.safetensors") if line.pop("tensors") else {}
        claims.append(
            kind(about=About(rounds=tuple(about["rounds"]), client=about["client"]), **line, **tensors)
        )
    refusal = Refusal(**raw["refusal"]) if raw["refusal"] else None
    return Outcome(
        claims=tuple(claims), refusal=refusal, seconds=raw["seconds"], notes=tuple(raw.get("notes", ()))
    )


def finished(folder: Path) -> bool:
    """Whether the unit was completed."""
    return (folder / "claims.json").is_file()


def same_claims(left: tuple[Claim, ...], right: tuple[Claim, ...]) -> bool:
    """Whether two outcomes assert exactly the same."""
    if [type(c) for c in left] != [type(c) for c in right]:
        return False
    for a, b in zip(left, right, strict=True):
        for f in fields(a):
            x, y = getattr(a, f.name), getattr(b, f.name)
            if isinstance(x, Tensor) != isinstance(y, Tensor):
                return False
            if not (torch.equal(x, y) if isinstance(x, Tensor) else x == y):
                return False
    return True
