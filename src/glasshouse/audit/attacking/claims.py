"""Claims on disk: one folder per attack and unit, ``claims.json`` written last.

A unit is what the harness calls an attack for: one update, one round, or the run. A folder without
its ``claims.json`` is unfinished and is run again on ``--resume``.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, final

import torch
from torch import Tensor

from glasshouse.attacks.base import About, Claim, ClassRepresentatives, Reconstruction, tensors_of
from glasshouse.errors import BadValue
from glasshouse.registry import load
from glasshouse.store import read_json, read_tensors, write_json, write_tensors
from glasshouse.tensors import check_finite
from glasshouse.wire import Refusal, Terms


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

    @classmethod
    def named(cls, name: str) -> "Unit":
        """The unit of a folder.

        Example:
            >>> Unit.named("round0-3-client7"), Unit.named("roundrun").rounds
            (Unit(rounds=(0, 3), client=7), ())
        """
        head, _, client = name.partition("-client")
        rounds = head.removeprefix("round")
        numbers = () if rounds == "run" else tuple(int(number) for number in rounds.split("-"))
        return cls(rounds=numbers, client=int(client) if client else None)


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
        tensors = tensors_of(claim)
        if tensors:
            write_tensors(folder / f"{position}.safetensors", tensors)
        lines.append(
            {
                "kind": claim.kind,
                "about": asdict(claim.about),
                "tensors": sorted(tensors),
                "plain": _plain(claim),
            }
        )
    refusal = asdict(outcome.refusal) if outcome.refusal else None
    said = {"refusal": refusal, "seconds": outcome.seconds, "notes": list(outcome.notes)}
    write_json(folder / "claims.json", {"claims": lines, **said})


def read_outcome(folder: Path) -> Outcome:
    """Read what :func:`write_outcome` wrote."""
    raw = read_json(folder / "claims.json")
    claims = []
    for position, line in enumerate(raw["claims"]):
        about = About(rounds=tuple(line["about"]["rounds"]), client=line["about"]["client"])
        tensors = read_tensors(folder / f"{position}.safetensors") if line["tensors"] else {}
        claims.append(load("claims", line["kind"])(about=about, **_rebuilt(line["plain"], tensors)))
    refusal = Refusal(**raw["refusal"]) if raw["refusal"] else None
    return Outcome(
        claims=tuple(claims), refusal=refusal, seconds=raw["seconds"], notes=tuple(raw.get("notes", ()))
    )


def _plain(claim: Claim) -> dict[str, Any]:
    """The fields of a claim that JSON can say; of mappings, the entries that are no tensors."""
    plain: dict[str, Any] = {}
    for f in fields(claim):
        value = getattr(claim, f.name)
        if isinstance(value, Mapping):
            plain[f.name] = {key: item for key, item in value.items() if not isinstance(item, Tensor)}
        elif f.name != "about" and not isinstance(value, Tensor):
            plain[f.name] = value
    return plain


def _rebuilt(plain: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> dict[str, Any]:
    """The fields of a claim from both of its files."""
    values = dict(plain)
    for name, tensor in tensors.items():
        owner, _, key = name.partition(".")
        if key:
            values[owner] = {**values.get(owner, {}), key: tensor}
        else:
            values[name] = tensor
    return values


def finished(folder: Path) -> bool:
    """Whether the unit was completed."""
    return (folder / "claims.json").is_file()


def check_claims(claims: tuple[Claim, ...], *, terms: Terms, unit: Unit, subject: str) -> None:
    """The harness distrusts the plug-in: shapes, finiteness, and that it speaks about what it was asked.

    Raises:
        BadValue: the first thing that does not hold.
    """
    shape = terms.architecture.input_shape
    for claim in claims:
        kind = type(claim).__name__
        tensors = tensors_of(claim)
        told = {name: v for name, v in tensors.items() if len(v) or not claim.may_be_empty}
        check_finite(told, subject=f"{subject}: claim {kind}")
        if unit.client is not None and claim.about.client != unit.client:
            raise BadValue(
                subject,
                needs=f"claims about client {unit.client}",
                got=f"{kind} about client {claim.about.client}",
                fix="correct the attack",
            )
        inputs = getattr(claim, "inputs", None)
        if isinstance(inputs, Tensor) and (inputs.ndim != 4 or tuple(inputs.shape[1:]) != shape):
            raise BadValue(
                subject,
                needs=f"inputs (B, {', '.join(map(str, shape))})",
                got=str(tuple(inputs.shape)),
                fix="correct the attack",
            )
        low, high = terms.image_range
        if (
            isinstance(inputs, Tensor)
            and len(inputs)
            and (inputs.min() < low - 1e-4 or inputs.max() > high + 1e-4)
        ):
            raise BadValue(
                subject,
                needs=f"inputs in [{low}, {high}]",
                got=f"[{float(inputs.min()):.3g}, {float(inputs.max()):.3g}]",
                fix="clip what the attack returns to terms.image_range",
            )
        lengths = {n: len(t) for n, t in tensors.items() if n in ("inputs", "labels", "confidence", "source")}
        if isinstance(claim, Reconstruction | ClassRepresentatives) and len(set(lengths.values())) > 1:
            raise BadValue(
                subject,
                needs="one label, confidence and source per input",
                got=str(lengths),
                fix="correct the attack",
            )


def same_claims(left: tuple[Claim, ...], right: tuple[Claim, ...]) -> bool:
    """Whether two outcomes assert exactly the same."""
    if [type(c) for c in left] != [type(c) for c in right]:
        return False
    for a, b in zip(left, right, strict=True):
        x, y = tensors_of(a), tensors_of(b)
        if x.keys() != y.keys() or not all(torch.equal(x[name], y[name]) for name in x):
            return False
        if (a.about, _plain(a)) != (b.about, _plain(b)):
            return False
    return True
