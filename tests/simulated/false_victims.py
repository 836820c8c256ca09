"""False-positive rate of per-victim verdicts: claims that show somebody else's example.

``python -m tests.simulated.false_victims`` prints the table of ``docs/result.md``.
"""

import sys
from collections.abc import Callable, Mapping
from typing import Final

import torch
from torch import Tensor

from glasshouse.attacks.base import About, Reconstruction
from glasshouse.audit.attacking.claims import Outcome, Unit
from glasshouse.audit.scoring.nulls import NullBook
from glasshouse.audit.scoring.read import Run
from glasshouse.audit.scoring.score import ScoredMetric, score_metric
from glasshouse.audit.scoring.table import tables
from glasshouse.audit.scoring.truth import GroundTruth
from glasshouse.audit.scoring.victims import victims_of
from glasshouse.data.sources import load
from glasshouse.metrics.base import ScoreContext
from glasshouse.metrics.reconstruction import Psnr
from glasshouse.metrics.statistics.rank import comparisons_for
from glasshouse.modalities.image import Image
from glasshouse.rng import Rng
from glasshouse.truth.record import Truth, Used
from glasshouse.wire import Batch

CELLS: Final = 1000
REFUSED: Final = 0.1
"""Largest share of cells that may go unjudged: two samples of one pool are told apart in some 5 %."""
SIZES: Final = (1, 3, 8, 20)

Claims = Callable[[Tensor, torch.Generator], Tensor]
"""Images of all victims, (v, C, H, W) → one claim about each, (v, R, C, H, W)."""


def own(images: Tensor, draws: torch.Generator) -> Tensor:
    """Each victim's own example with noise: a true leak."""
    return _noisy(images, draws)[:, None]


def exchanged(images: Tensor, draws: torch.Generator) -> Tensor:
    """The next victim's example with noise."""
    return _noisy(images.roll(-1, 0), draws)[:, None]


def blurred(images: Tensor, draws: torch.Generator) -> Tensor:
    """The mean of the next victim's example and grey, which is close to every example."""
    return 0.5 * exchanged(images, draws) + 0.25


def several(images: Tensor, draws: torch.Generator) -> Tensor:
    """Four candidates per victim: the next four victims' examples, all but the first of them mirrored."""
    shifts = [images.roll(-shift % len(images) or -1, 0) for shift in range(1, 5)]
    return torch.stack([_noisy(one.flip(-1) if i else one, draws) for i, one in enumerate(shifts)], 1)


KINDS: Final[Mapping[str, Claims]] = {"exchanged": exchanged, "blurred": blurred, "four candidates": several}


def _noisy(images: Tensor, draws: torch.Generator) -> Tensor:
    return (images + 0.1 * torch.randn(images.shape, generator=draws)).clamp(0, 1)


def named(kind: Claims, victims: int, cell: int, pool: Batch) -> int | None:
    """Number of a cell's victims called leaked; private and held-out examples are drawn from ``pool``.

    None: it is refused to judge them, because the held-out examples happen to look different.
    """
    draws = torch.Generator().manual_seed(cell)
    order = torch.randperm(len(pool), generator=draws)
    spare = 1 if victims == 1 else 0  # with one victim, the claim shows another person's example
    total = victims + spare + comparisons_for(victims)
    chosen = pool.pick(order[:total])
    private = chosen.pick(torch.arange(victims))
    filed = kind(chosen.inputs[: victims + spare], draws)[:victims]
    context = ScoreContext(classes=10)
    # Ranks do not depend on the null, and choosing it is slow.
    book = NullBook(
        modality=Image(size=tuple(private.inputs.shape[1:])),
        auxiliary=chosen.pick(torch.arange(total - 60, total)),
        context=context,
        rng=Rng.root(cell),
        among=("grey picture",),
    )
    ground = GroundTruth(
        truth=Truth(
            private=private,
            shards={client: (client,) for client in range(victims)},
            used={(0, client): Used(steps=((client,),), behaviour="honest") for client in range(victims)},
        ),
        context=context,
        announced={(0, client): filed.shape[1] for client in range(victims)},
        heldout=chosen.pick(torch.arange(victims + spare, total)),
    )
    units = []
    for client, inputs in enumerate(filed):
        about = About(rounds=(0,), client=client)
        claim = Reconstruction(about=about, inputs=inputs, labels=None, confidence=torch.ones(len(inputs)))
        units.append((Unit(rounds=(0,), client=client), Outcome(claims=(claim,))))
    run = Run(folder="", seed=0, units=units, ground=ground, book=book)
    scored = score_metric("psnr", Psnr(), [run])
    assert isinstance(scored, ScoredMetric)
    verdicts = victims_of("psnr", scored, [run], tables(Psnr(), [run]))
    return None if isinstance(verdicts, str) else sum(verdict.leaks for verdict in verdicts)


def pool() -> Batch:
    """The built-in digits."""
    (split, *rest) = load("digits").splits.values()
    images = [one.batch(torch.arange(len(one))) for one in (split, *rest)]
    return Batch(inputs=torch.cat([b.inputs for b in images]), labels=torch.cat([b.labels for b in images]))


def false_rate(kind: Claims, victims: int, cells: int = CELLS) -> float:
    """Share of cells with at least one victim falsely called leaked."""
    digits = pool()
    counts = [named(kind, victims, cell, digits) for cell in range(cells)]
    refused = sum(count is None for count in counts)
    assert refused <= REFUSED * cells, f"{refused} of {cells} cells were not judged"
    return sum(count is not None and count > 0 for count in counts) / cells


def power(victims: int, cells: int = CELLS) -> float:
    """Share of truly leaked victims that are called leaked."""
    digits = pool()
    counts = [named(own, victims, cell, digits) for cell in range(cells)]
    assert None not in counts
    return sum(count or 0 for count in counts) / (cells * victims)


def print_table(cells: int = CELLS) -> None:
    """Print the table in Markdown."""
    print("| claims | " + " | ".join(f"{n} victims" for n in SIZES) + " |")
    print("|---" * (len(SIZES) + 1) + "|")
    for name, kind in KINDS.items():
        rates = [f"{false_rate(kind, n, cells):.3f}" for n in SIZES]
        print(f"| {name} | " + " | ".join(rates) + " |", flush=True)
    print("| their own (power) | " + " | ".join(f"{power(n, cells // 5):.2f}" for n in SIZES) + " |")


if __name__ == "__main__":
    print_table(int(sys.argv[1]) if len(sys.argv) > 1 else CELLS)
