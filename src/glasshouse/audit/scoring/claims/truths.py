"""The truth with its victims or classes exchanged: what a claim is scored against that must not fit."""

import dataclasses
from collections.abc import Mapping

from glasshouse.truth.record import Truth
from glasshouse.wire import Batch


def exchange_classes(truth: Truth, *, by: int = 1) -> Truth:
    """The truth with every private class's images exchanged for those of the class ``by`` places on."""
    labels = truth.private.labels
    turned = Batch(inputs=truth.private.inputs, labels=(labels + by) % (int(labels.max()) + 1))
    return dataclasses.replace(truth, private=turned)


def shift_victims(truth: Truth, units: Mapping[tuple[int, int], tuple[int, int]]) -> Truth:
    """The truth with each victim's examples exchanged for another's, for a negative control.

    Properties move to as many clients that do not have them, as far as there are so many.
    """
    used = {key: truth.used[other] for key, other in units.items()}
    marked = {
        name: tuple(c for c in truth.shards if c not in clients)[: len(clients)]
        for name, clients in truth.marked.items()
    }
    return Truth(private=truth.private, shards=truth.shards, used=used, marked=marked)
