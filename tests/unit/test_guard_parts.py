"""The guard walks a model tensor by tensor, and a tensor in parts: the same numbers in little memory."""

import tracemalloc

import numpy as np
import pytest
import torch

import glasshouse as gh
from glasshouse.guard import parts
from glasshouse.guard.inspect import inspect
from glasshouse.store import write_tensors


def slow(values, width):
    """How often each count occurs, from all bins at once."""
    bins = (values.double() / width).round()
    numbers = bins.nan_to_num(nan=1e300, posinf=2e300, neginf=-2e300).numpy()
    return np.unique(np.unique(numbers, return_counts=True)[1], return_counts=True)


def drawn(kind):
    rng = torch.Generator().manual_seed(3)
    near = torch.randn(5000, generator=rng) * 0.02
    odd = torch.tensor([torch.nan, torch.inf, -torch.inf, torch.nan])
    return {
        "near": near,
        "repeated": near.repeat(3),
        "wide": near * 500,
        "far": torch.cat([near, near * 1e7]),
        "odd": torch.cat([near, odd]),
        "only odd": odd,
        "zeros": torch.zeros(5000),
        "narrow": near.bfloat16(),
        "half": torch.cat([near, odd]).half(),
        "whole": torch.arange(-2500, 2500),
    }[kind]


KINDS = ["near", "repeated", "wide", "far", "odd", "only odd", "zeros", "narrow", "half", "whole"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", [64, 4999, 2**20])
def test_bins_are_counted_in_parts_as_at_once(kind, size, monkeypatch):
    monkeypatch.setattr(parts, "PART", size)
    values = drawn(kind)
    counts, bins, top = parts.often(values, 1e-6)
    assert [x.tolist() for x in (counts, bins)] == [x.tolist() for x in slow(values, 1e-6)]
    finite = values[values.isfinite()].double().abs()
    assert top == (float(finite.max()) if len(finite) else 0.0)


def model(rows=300):
    """A model with every oddity that the rules know."""
    rng = torch.Generator().manual_seed(5)
    weight = torch.randn(rows, 64, generator=rng) * 0.05
    weight[1::7] = weight[0] * 3
    weight[5] = 0
    weight[:, 9] = weight[:, 8] * -2
    kernels = torch.randn(40, 3, 3, 3, generator=rng)
    kernels[3] = 0
    kernels[4] = 0
    kernels[4, 0, 1, 1] = 1
    broken = torch.randn(50, 20, generator=rng)
    broken[0, 0] = torch.nan
    return {"a.weight": weight, "a.bias": weight[:, 0].clone(), "c.weight": kernels, "d.weight": broken}


def test_a_model_is_judged_in_parts_as_at_once(monkeypatch):
    whole = inspect(model())
    monkeypatch.setattr(parts, "PART", 100)
    for module in ("vectors", "rules.rows"):
        monkeypatch.setattr(f"glasshouse.guard.{module}.PART", 100)
    in_parts = inspect(model())
    assert in_parts.findings == whole.findings
    assert len(whole.findings) >= 6
    assert in_parts.inspection.values == pytest.approx(whole.inspection.values, rel=1e-12)


def test_a_file_is_judged_tensor_by_tensor(tmp_path):
    write_tensors(tmp_path / "m.safetensors", model())
    mine, theirs = gh.guard(tmp_path / "m.safetensors"), inspect(model())
    assert mine.findings == theirs.findings
    assert mine.apart == theirs.apart


def test_an_inspection_takes_little_more_memory_than_the_largest_tensor(tmp_path):
    """NumPy's and Python's memory; torch's own is counted by the slow test of whole models."""
    shape = (2048, 2048)
    weight = torch.randn(shape, generator=torch.Generator().manual_seed(0)) * 0.02
    write_tensors(tmp_path / "m.safetensors", {"fc.weight": weight})
    size = weight.nbytes
    del weight
    tracemalloc.start()
    assert not gh.guard(tmp_path / "m.safetensors").findings
    assert tracemalloc.get_traced_memory()[1] < 2 * size + 2**25
    tracemalloc.stop()
