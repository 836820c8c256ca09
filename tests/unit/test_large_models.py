"""Guard, capture and replay of models of the size that people train, in processes of their own."""

import pytest
from benchmarks.large import MODELS, rows

from glasshouse.executors.base import peak_memory

KEPT = 300.0
"""MB of free heap that a process keeps, whatever the model (glasshouse.process), and small things."""


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_large_models_are_walked_tensor_by_tensor(name, tmp_path):
    if peak_memory() == 0:
        pytest.skip("this system does not say how much memory a process took")
    by_step = {row["step"]: row for row in rows(name, tmp_path)}
    guarded = by_step["guard"]
    assert guarded["peak_mb"] - guarded["idle_mb"] <= 2 * guarded["largest_mb"] + KEPT
    assert all(row["peak_mb"] <= 4 * 2**30 / 1e6 for row in by_step.values())
    sent = sum(2 * numbers_of(shape) for shape in MODELS[name].trained.values()) / 1e6
    frozen = MODELS[name].trained != MODELS[name].base
    base = 0.0 if frozen else guarded["file_mb"]  # named by its hash, or stored once
    adapters = sent if frozen else 0.0  # of the broadcast, with float32 in four bytes
    expected = base + 2 * adapters + sent * MODELS[name].updates
    assert by_step["capture"]["disk_mb"] == pytest.approx(expected, rel=0.05)


def numbers_of(shape):
    count = 1
    for side in shape:
        count *= side
    return count
