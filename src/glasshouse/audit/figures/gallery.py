"""What is shown beside the numbers: originals beside reconstructions, filed as arrays for the report."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from glasshouse.attacks.base import Reconstruction
from glasshouse.audit.scoring.judge import Judge
from glasshouse.metrics.match import assign, mse_table, take
from glasshouse.results.records import Exhibit
from glasshouse.scenario.axes import Cell

SHOWN = 8


@final
@dataclass(frozen=True, kw_only=True)
class Place:
    """Where an exhibit's file goes. ``run``: the run directory; ``path``: the file, below it."""

    run: Path
    path: Path


def gallery(
    place: Place, attack: str, claims: Sequence[Reconstruction], *, judge: Judge, cell: Cell
) -> list[Exhibit]:
    """Up to ``SHOWN`` originals with what was claimed of them: the first victims, not the best."""
    rows: list[Tensor] = []
    for claim in claims:
        truth, _ = judge.truth.batch(claim.about.rounds[0], claim.about.client)
        pairing = assign(mse_table(truth.inputs, claim.inputs))
        rows += torch.stack(
            [truth.inputs, take(claim.inputs, pairing, grey=judge.context.grey)], dim=1
        ).unbind()
        if len(rows) >= SHOWN:
            break
    images: NDArray[np.float32] = torch.stack(rows[:SHOWN]).permute(0, 1, 3, 4, 2).numpy()
    np.savez_compressed(place.path, images=images)
    where = ", ".join(f"{name.split('.')[-1]} = {value}" for name, value in cell.axes.items())
    return [
        Exhibit(
            kind="pictures",
            scenario=cell.scenario.name,
            title=f"{attack}" + (f" ({where})" if where else ""),
            caption="The first private examples, each with what the attack made of it; not a selection.",
            data={
                "columns": ["original", "reconstruction"],
                "rows": [str(i + 1) for i in range(len(images))],
            },
            file=str(place.path.resolve().relative_to(place.run.resolve())),
            private=("original", "reconstruction"),
        )
    ]
