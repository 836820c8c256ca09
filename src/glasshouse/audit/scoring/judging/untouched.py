"""Claims and truth stay as they are while a metric of another package looks at them.

A metric that works in place changes what all after it see: leaks would be called silence.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from glasshouse.audit.scoring.read import Run
from glasshouse.audit.sealed import is_foreign
from glasshouse.errors import BadValue
from glasshouse.metrics.base import Metric

__all__ = ["untouched"]


@contextmanager
def untouched(name: str, metric: Metric, runs: Sequence[Run]) -> Iterator[None]:
    """Put back what a metric of another package changed in the block, and refuse it.

    Ours are tested for it, and what is copied may be large.

    Raises:
        BadValue: it changed something.
    """
    tensors = [one for run in runs for one in _seen(run)] if is_foreign(metric) else []
    before = [one.clone() for one in tensors]
    changed = 0
    try:
        yield
    finally:
        for one, copy in zip(tensors, before, strict=True):
            if not torch.equal(_bytes(one), _bytes(copy)):
                one.copy_(copy)
                changed += 1
    if changed:
        raise BadValue(
            f"metric '{name}'",
            needs="claims and truth left as they are",
            got=f"{changed} tensors changed in place; they were put back",
            fix="work on copies: x.clone(), x - y instead of x.sub_(y)",
        )


def _seen(run: Run) -> Iterator[Tensor]:
    """All tensors that a metric is handed, or parts of which."""
    ground, book = run.ground, run.book
    for batch in (ground.truth.private, ground.heldout, book.auxiliary, book.draws, *book.further.values()):
        if batch is not None:
            yield from (batch.inputs, batch.labels)
    for context in (ground.context, book.context):
        if context.distractors is not None:
            yield context.distractors
    for claim in run.claims:
        yield from (part for part in vars(claim).values() if isinstance(part, Tensor))


def _bytes(tensor: Tensor) -> Tensor:
    """Its content, so that NaN is equal to itself."""
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8)
