"""What is shown beside the numbers: originals beside reconstructions, filed as arrays for the report."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from glasshouse.attacks.base import Reconstruction
from glasshouse.audit.result import Exhibit
from glasshouse.audit.score import Judge
from glasshouse.metrics.match import assign, mse_table, take
from glasshouse.scenario.axes import Cell

SHOWN = 8


def gallery(
    run: Path, folder: Path, key: str, attack: str, claims: Sequence[Reconstruction], judge: Judge, cell: Cell
) -> list[Exhibit]:
    """Up to ``SHOWN`` originals with what was claimed of them, in order of the victims: the first ones, not the best."""
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
    path = folder / "truth" / f"gallery-{key}.npz"
    np.savez_compressed(path, images=images)
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
            file=str(path.resolve().relative_to(run.resolve())),
            private=("original", "reconstruction"),
        )
    ]
