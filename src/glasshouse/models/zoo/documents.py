"""Models that are documents: the bytes of trees or coefficients, read by ``glasshouse.formats`` to predict.

Shape letters: B rows, F features, N bytes.
"""

from typing import Any, final

import numpy as np
import torch
from torch import Tensor, nn

from glasshouse.errors import BadValue
from glasshouse.formats.base import read_document
from glasshouse.formats.carried import CAPACITY, bytes_of
from glasshouse.formats.records import Newton, TreeEnsemble
from glasshouse.models.base import Normalize, SplitModel
from glasshouse.registry import Card


@Card(summary="boosted trees as a document; trained by protocols xgb_bagging and xgb_cyclic")
def boosted_trees(input_shape: tuple[int, ...], classes: int, *, capacity: int = CAPACITY) -> SplitModel:
    """Boosted trees of two classes.

    Args:
        input_shape: (F,).
        classes: must be 2.
        capacity: largest number of bytes of the document.
    """
    return _model("boosted_trees", input_shape, classes, capacity)


@Card(summary="logistic regression as a document of coefficients; trained by protocol newton")
def coefficients(input_shape: tuple[int, ...], classes: int, *, capacity: int = CAPACITY) -> SplitModel:
    """Logistic regression of two classes.

    Args:
        input_shape: (F,).
        classes: must be 2.
        capacity: largest number of bytes of the document.
    """
    return _model("coefficients", input_shape, classes, capacity)


@Card(summary="no model: sites send documents of numbers (protocols statistics and survival)")
def no_model(input_shape: tuple[int, ...], classes: int, *, capacity: int = CAPACITY) -> SplitModel:
    """Nothing is learnt, so that every prediction is the first class: set audit.utility = false.

    Args:
        input_shape: (F,).
        classes: must be 2.
        capacity: largest number of bytes of the document.
    """
    return _model("no_model", input_shape, classes, capacity)


def _model(name: str, input_shape: tuple[int, ...], classes: int, capacity: int) -> SplitModel:
    if classes != 2 or len(input_shape) != 1 or not 1 <= capacity <= 2**26:
        raise BadValue(
            f"model '{name}'",
            needs="rows (F,), two classes, capacity from 1 to 2^26 bytes",
            got=f"inputs {input_shape}, {classes} classes, capacity = {capacity:,}",
            fix="choose a table with a yes-or-no target",
        )
    return SplitModel(normalize=Normalize(mean=0.0, std=1.0), features=Margins(capacity), head=Odds())


@final
class Margins(nn.Module):
    """Rows (B, F) → their margin by trees or coefficients, (B, 1); 0 without a document."""

    document: Tensor

    def __init__(self, capacity: int) -> None:
        super().__init__()
        self.register_buffer("document", torch.zeros(capacity, dtype=torch.uint8))

    def forward(self, rows: Tensor) -> Tensor:
        document = bytes_of(self.document)
        if not document:
            return rows.new_zeros(len(rows), 1)
        trees = read_document(document)[1]
        if isinstance(trees, Newton):
            theta = torch.from_numpy(trees.theta).to(rows.device)
            return (theta[0] + rows.double() @ theta[1:]).to(rows)[:, None]
        assert isinstance(trees, TreeEnsemble)
        values: Any = np.zeros(len(rows))
        for t, tree in enumerate(trees.trees):
            values = values + tree.value[trees.reach(t, rows.cpu().double().numpy())]
        if trees.base is not None:
            values = values + np.log(trees.base / (1 - trees.base))
        return torch.from_numpy(values).to(rows)[:, None]


@final
class Odds(nn.Module):
    """A margin (B, 1) as logits of two classes, (B, 2)."""

    def forward(self, margin: Tensor) -> Tensor:
        return torch.cat([torch.zeros_like(margin), margin], 1)
