"""Ground truth with exchanged victims or classes, for negative controls: claims must not match it."""

import dataclasses
from collections.abc import Mapping

from glasshouse.truth.record import Truth
from glasshouse.wire import Batch


def exchange_classes(truth: Truth, *, by: int = 1) -> Truth:
    """The ground truth with the images of every private class replaced by those ``by`` classes away."""
    labels = truth.private.labels
    turned = Batch(inputs=truth.private.inputs, labels=(labels + by) % (int(labels.max()) + 1))
    return dataclasses.replace(truth, private=turned)


def rotate_victims(truth: Truth) -> Truth:
    """:func:`shift_victims` to the next victim, and the last one to the first; unchanged with only one."""
    keys = sorted(truth.used, key=lambda key: key[::-1])  # rounds first: a sum is exchanged whole
    return shift_victims(truth, dict(zip(keys, keys[1:] + keys[:1], strict=True)))


def shift_victims(truth: Truth, units: Mapping[tuple[int, int], tuple[int, int]]) -> Truth:
    """The ground truth with each victim's examples replaced by another's, for a negative control.

    Properties move to the same number of clients without them, or to all such clients if there are fewer.
    """
    used = {key: truth.used[other] for key, other in units.items()}
    marked = {
        name: tuple(c for c in truth.shards if c not in clients)[: len(clients)]
        for name, clients in truth.marked.items()
    }
    return Truth(private=truth.private, shards=truth.shards, used=used, marked=marked)
