"""A Lightning script under ``flare.patch``, in FLARE's simulator: captured, and its training repeated."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("nvflare")

from glasshouse.audit.captured.collect import collect
from glasshouse.audit.captured.terms import TOLERANCE, check_terms
from glasshouse.transcript.files import read_transcript

JOB = Path(__file__).parent / "lightning_job"


@pytest.mark.slow
def test_a_lightning_script_is_captured_and_repeated(tmp_path, monkeypatch, capsys):
    pytest.importorskip("pytorch_lightning")  # no extra of ours brings it
    monkeypatch.syspath_prepend(str(JOB))
    environment = {**os.environ, "HOME": str(tmp_path), "OMP_NUM_THREADS": "1"}
    subprocess.run(
        [sys.executable, str(JOB / "job.py"), str(tmp_path)],
        check=True, timeout=400, env=environment, cwd=tmp_path, capture_output=True,
    )  # fmt: skip
    capture = tmp_path / "capture"
    truth = collect(capture, [tmp_path / "truth"])
    transcript = read_transcript(capture / "transcript", trust_factory=True)
    first, second = transcript.rounds
    assert [len(first.updates), len(second.updates)] == [2, 2]
    weight = sum(update.steps for update in first.updates)
    largest = 0.0
    for name, sent in second.received_by(None).tensors.items():
        mean = sum(u.steps * u.tensors[name].double() for u in first.updates) / weight
        largest = max(largest, float((mean - sent).abs().max()))
    checked = check_terms(capture, transcript, truth)
    with capsys.disabled():
        print(f"\nmean against the next model {largest:.1e}; {checked.n} updates again {checked.error:.1e}")
    assert largest < 1e-6
    assert (checked.n, checked.suspect) == (4, "")
    assert checked.error < TOLERANCE
    # what the trainer measured leaves in clear
    assert "meta.initial_metrics.val_acc" in (capture / "messages.jsonl").read_text()
