"""A received model waits in a file: equal in every value, gone with the process, and not in memory."""

from pathlib import Path

import numpy as np

from glasshouse.gate.mechanism import blocks
from glasshouse.gate.shelf import LARGE, let_go, shelve


def test_tensors_on_the_shelf_are_the_same_and_leave_no_file(tmp_path):
    rng = np.random.default_rng(0)
    arrays = {
        "w": rng.standard_normal((512, 700)).astype(np.float32),
        "b": np.zeros(3, np.float32),
        "v": rng.standard_normal(LARGE // 8 + 5),
    }
    expected = {name: array.copy() for name, array in arrays.items()}
    kept = shelve(arrays, tmp_path)
    assert arrays == {}
    assert list(tmp_path.iterdir()) == []
    for name, array in expected.items():
        let_go(kept[name])
        np.testing.assert_array_equal(kept[name], array)
        assert kept[name].dtype == array.dtype
    assert hasattr(kept["w"], "_mmap")
    assert not hasattr(kept["b"], "_mmap")


def resident():
    lines = Path("/proc/self/status").read_text().splitlines()
    (line,) = [line for line in lines if line.startswith("VmRSS")]
    return int(line.split()[1]) * 1024


def test_comparing_with_a_shelved_model_takes_no_second_copy(tmp_path):
    model = {"w": np.ones(2**25, np.float32)}
    size = model["w"].nbytes
    kept = shelve(model, tmp_path)
    sent = np.full(2**25, 1.5, np.float32)
    before, top = resident(), 0
    total = 0.0
    for number, (_, _, change) in enumerate(blocks(sent, kept["w"])):
        total += float(change.sum())
        if number % 32 == 0:
            top = max(top, resident())
    assert total == 2**24
    assert top - before < size / 3
