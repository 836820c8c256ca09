"""A federation without files: random images, one per client, and claims about them."""

from dataclasses import dataclass, fields

import numpy as np
import torch

from glasshouse.attacks.base import About, Claim, Reconstruction
from glasshouse.audit.attacking.claims import Outcome, Unit
from glasshouse.audit.scoring.nulls import NullBook
from glasshouse.audit.scoring.read import Run
from glasshouse.audit.scoring.truth import GroundTruth
from glasshouse.metrics.base import ScoreContext
from glasshouse.modalities.image import Image
from glasshouse.rng import Rng
from glasshouse.tasks.classification import Classification
from glasshouse.truth.record import Truth, Used
from glasshouse.wire import Architecture, Batch, Refusal, Terms

SHAPE = (1, 8, 8)
TERMS = Terms(
    protocol="fedsgd",
    architecture=Architecture(name="mlp", inputs=Image(size=SHAPE), task=Classification(classes=4)),
    clients=8,
    sends="gradient",
    cohort=8,
    batch_size=1,
)
REFUSED = Refusal(subject="attack 'x'", needs="a", got="b", fix="c")


@dataclass(frozen=True, kw_only=True, eq=False)
class Bench:
    """What happened, and the null adversaries beside it."""

    ground: GroundTruth
    book: NullBook


def images(count: int, seed: int = 0) -> torch.Tensor:
    return torch.rand((count, *SHAPE), generator=torch.Generator().manual_seed(seed))


def batch(count: int, seed: int) -> Batch:
    return Batch(inputs=images(count, seed), labels=torch.arange(count) % 4)


def bench(private: torch.Tensor, *, each: int = 1, heldout: int = 200, **changes) -> Bench:
    """Client c of round 0 used ``each`` of the private images."""
    clients = len(private) // each
    rows = {c: tuple(range(c * each, (c + 1) * each)) for c in range(clients)}
    truth = Truth(
        private=Batch(inputs=private, labels=torch.arange(len(private)) % 4),
        shards=rows,
        used={(0, c): Used(steps=(r,), behaviour="honest") for c, r in rows.items()},
    )
    context = changes.pop("context", ScoreContext(classes=4))
    of_book = {
        "modality": changes.pop("modality", None) or Image(size=tuple(private.shape[1:])),
        "auxiliary": batch(60, 1),
        "rng": Rng.root(0),
    }
    of_book |= {f.name: changes.pop(f.name) for f in fields(NullBook) if f.name in changes}
    of_ground = {
        "truth": truth,
        "heldout": batch(heldout, 2) if heldout else None,
        "run": "run",
        "terms": TERMS,
    }
    return Bench(
        ground=GroundTruth(**{**of_ground, "context": context, **changes}),
        book=NullBook(context=context, **of_book),
    )


def about(client: int | None) -> About:
    return About(rounds=(0,), client=client)


def claim(client: int | None, inputs: torch.Tensor, **changes) -> Reconstruction:
    given = {"labels": None, "confidence": torch.ones(len(inputs))}
    return Reconstruction(about=about(client), inputs=inputs, **{**given, **changes})


def run_of(bench: Bench, claims: dict[int, tuple[Claim, ...]], folder: str = "run") -> Run:
    """A client without claims is a unit in which the attack refused."""
    units = [
        (Unit(rounds=(0,), client=c), Outcome(claims=filed, refusal=None if filed else REFUSED))
        for c, filed in claims.items()
    ]
    return Run(folder=folder, seed=0, units=units, ground=bench.ground, book=bench.book)


def noisy(inputs: torch.Tensor, std: float, seed: int = 3) -> torch.Tensor:
    noise = torch.randn(inputs.shape, generator=torch.Generator().manual_seed(seed))
    return (inputs + std * noise).clamp(0, 1)


def concatenated(values: tuple[np.ndarray, ...]) -> list[float]:
    return np.concatenate(values).tolist()
