"""What a server does with an update before it enters a sum with noise."""

from dataclasses import replace

from glasshouse.errors import Inapplicable
from glasshouse.tensors import norm, scale_tensors
from glasshouse.wire import Update


def clip_update(update: Update, clip: float, *, protocol: str) -> tuple[Update, bool]:
    """The update, scaled down to an L2 norm of ``clip``, and whether it was within it.

    Raises:
        Inapplicable: it carries running statistics, which no clip bounds.
    """
    if update.buffers:
        raise Inapplicable(
            f"protocol '{protocol}'",
            needs="updates of parameters alone: clipping and noise cover nothing else",
            got=f"running statistics: {', '.join(list(update.buffers)[:3])}",
            fix="use group norm, personal batch norms, or federation.training.mode = evaluation",
        )
    size = norm(update.tensors)
    if size <= clip:
        return update, True
    return replace(update, tensors=scale_tensors(update.tensors, clip / size)), False
