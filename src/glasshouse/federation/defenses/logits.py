"""Base class of the defences on logits."""

from collections.abc import Mapping
from typing import ClassVar, Protocol

from torch import Tensor

from glasshouse.errors import BadValue
from glasshouse.federation.defenses.base import TensorDefense
from glasshouse.rng import Rng
from glasshouse.wire import Kind, Update


class LogitDefense(TensorDefense, Protocol):
    """Base class of defences that rewrite an upload of logits, (P, K)."""

    kinds: ClassVar[frozenset[Kind]] = frozenset({"logits"})

    def rewrite(self, update: Update, rng: Rng, /) -> Mapping[str, Tensor]:
        """``change`` applied to every table.

        Raises:
            BadValue: a tensor is not a table of at least two classes.
        """
        for key, t in update.tensors.items():
            if t.ndim != 2 or t.shape[1] < 2:
                raise BadValue(
                    f"defense '{self.name}'",
                    needs="logits of shape (P, K), K >= 2",
                    got=f"'{key}' of shape {tuple(t.shape)}",
                    fix="send one row per public example and one column per class",
                )
        return {key: self.change(t, rng) for key, t in update.tensors.items()}
