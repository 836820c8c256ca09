"""Strip boosted trees to what predicts: no sums, no gains, no weights of splits, leaf values rounded.

XGBoost writes beside every split and leaf the sum of second derivatives over its rows, which is the number of
rows in disguise, and gains and weights from which it follows (``glasshouse defenses`` says so of masks that
leave them). Predictions need none of the three. The library wants the lists when it loads a model, so that
they are filled with zeros.

Source: own; NVIDIA FLARE's ``mask_sum_hessian`` drops the first of the three alone. No framework rounds.

What stays: thresholds are values that occur, the base score is the share of positives where none is set, and
a leaf's value at many digits has one pair of numbers of rows that explains it
(``glasshouse show rounded_leaves``).
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, final

from annotated_types import Ge, Le
from torch import Tensor

from glasshouse.errors import Inapplicable
from glasshouse.federation.defenses.base import RewritingDefense
from glasshouse.formats.carried import bytes_of, tensor_of
from glasshouse.limits import Fix
from glasshouse.registry import Card
from glasshouse.rng import Rng
from glasshouse.wire import Kind, Update

HIDDEN = ("sum_hessian", "loss_changes", "base_weights")
"""Lists of a tree that no prediction reads."""


@final
@dataclass(frozen=True, kw_only=True)
class StripTrees(RewritingDefense):
    """Keep feature, threshold and rounded value of every node.

    Args:
        digits: decimals of leaf values; 17 leaves them as they are.
    """

    card: ClassVar[Card] = Card(
        summary="sends boosted trees without sums, gains and weights, leaf values rounded; no guarantee"
    )
    name: ClassVar[str] = "strip_trees"
    kinds: ClassVar[frozenset[Kind]] = frozenset({"document"})

    digits: Annotated[int, Ge(0), Le(17), Fix("two to four decimals cost hardly any accuracy")] = 3

    def rewrite(self, update: Update, rng: Rng, /) -> Mapping[str, Tensor]:
        """The same documents, stripped.

        Raises:
            Inapplicable: a document is no XGBoost model as JSON.
        """
        del rng
        return {
            name: tensor_of(self.strip(bytes_of(sent), update), sent.numel())
            for name, sent in update.tensors.items()
        }

    def strip(self, document: bytes, update: Update) -> bytes:
        """One document.

        Raises:
            Inapplicable: it is no XGBoost model as JSON.
        """
        try:
            model: dict[str, Any] = json.loads(document)
            trees = model["learner"]["gradient_booster"]["model"]["trees"]
        except (ValueError, KeyError, TypeError) as error:
            raise Inapplicable(
                "defense 'strip_trees'",
                needs="XGBoost's model as JSON",
                got=f"round {update.round}, client {update.client}: another document",
                fix='use it with xgb_bagging or xgb_cyclic; an app saves such a file by save_raw("json")',
            ) from error
        for tree in trees:
            size = len(tree["left_children"])
            tree.update({name: [0.0] * size for name in HIDDEN})
            tree["split_conditions"] = [
                round(value, self.digits) if left == -1 else value
                for left, value in zip(tree["left_children"], tree["split_conditions"], strict=True)
            ]
        return json.dumps(model).encode()
