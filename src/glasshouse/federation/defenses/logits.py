"""What the defences on logits share: the updates they accept, and how a row is rewritten."""

import dataclasses
from collections.abc import Callable

from torch import Tensor

from glasshouse.errors import BadValue
from glasshouse.federation.defenses.base import LOGITS, accept
from glasshouse.wire import Update


def rewrite_logits(update: Update, change: Callable[[Tensor], Tensor], *, name: str) -> Update:
    """A copy of an upload of logits, (P, K), with ``change`` applied for defence ``name``.

    Raises:
        Inapplicable: the update holds no logits.
        BadValue: a tensor is not a table of at least two classes.
    """
    accept(update, name=name, kinds=LOGITS)
    for key, t in update.tensors.items():
        if t.ndim != 2 or t.shape[1] < 2:
            raise BadValue(
                f"defense '{name}'",
                needs="logits of shape (P, K), K >= 2",
                got=f"'{key}' of shape {tuple(t.shape)}",
                fix="send one row per public example and one column per class",
            )
    return dataclasses.replace(update, tensors={key: change(t) for key, t in update.tensors.items()})
