"""The batch size that recordings of test clients show, and what they leave open."""

import pytest
import torch

from glasshouse.audit.captured.origins import shown_batch_size
from glasshouse.truth.recorded import Recorded
from glasshouse.wire import Batch


def record(examples, size, *, epochs=2):
    """A client that trains on its numbered examples in batches of a size."""
    rows = torch.arange(examples, dtype=torch.float32)[:, None]
    steps = tuple(
        Batch(inputs=part, labels=torch.zeros(len(part)).long())
        for _ in range(epochs)
        for part in torch.split(rows, size)
    )
    return Recorded(node=f"{examples}", round=0, steps=steps, pixels=True, sent={})


@pytest.mark.parametrize(
    ("records", "stated", "shown"),
    [
        ([record(100, 32)], 1, 32),
        ([record(20, 32)], 32, None),  # fewer examples than a batch: it may be the stated one
        ([record(20, 32)], 8, 20),  # but not a smaller one
        ([record(100, 32), record(20, 32)], 1, 32),
        ([record(100, 32), record(100, 16)], 1, None),  # they differ
        ([record(20, 32, epochs=1)], 1, None),  # one step
        ([], 1, None),
    ],
)
def test_what_steps_show_of_the_batch_size(records, stated, shown):
    assert shown_batch_size(records, stated) == shown
