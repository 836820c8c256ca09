"""Flower's own simulation engine, captured: clients in Ray's processes, guarded by one changed import."""

import os
import subprocess
import sys
from pathlib import Path

import flower_apps as apps
import pytest

from glasshouse.store import read_jsonl
from glasshouse.transcript.files import read_transcript

pytestmark = pytest.mark.slow  # Ray starts
HERE = Path(__file__).parent


def test_a_simulation_is_captured_and_its_clients_are_guarded(tmp_path):
    script = [sys.executable, str(HERE / "flower_simulation.py"), str(tmp_path)]
    subprocess.run(script, env={**os.environ, "PYTHONPATH": str(HERE)}, check=True, timeout=300)
    first, second = read_transcript(tmp_path / "run" / "transcript").rounds
    for record in (first, second):
        assert {update.client for update in record.updates} == {0, 1, 2}
        assert {update.examples for update in record.updates} == {apps.EXAMPLES}
    weight = sum(update.examples for update in first.updates)
    for name, tensor in second.broadcasts[0].tensors.items():
        mean = sum(u.examples * u.tensors[name].double() for u in first.updates) / weight
        assert float((tensor.double() - mean).abs().max()) <= 1e-6
    lines = [line for file in (tmp_path / "guard").glob("*.jsonl") for line in read_jsonl(file)]
    assert [line["decision"] for line in lines] == ["sent"] * 6
