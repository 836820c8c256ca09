"""The example's job in FLARE's simulator: captured, collected, and the server's arithmetic repeated."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("nvflare")

from glasshouse.audit.captured.collect import collect
from glasshouse.audit.captured.terms import TOLERANCE, check_terms
from glasshouse.transcript.files import read_transcript

EXAMPLE = Path(__file__).parents[2] / "examples" / "nvflare-privacy-audit"


def weighted_mean_errors(transcript):
    """How far each tensor of a next model is from the mean of the updates before it, weighted by steps."""
    errors = []
    for before, after in zip(transcript.rounds, transcript.rounds[1:], strict=False):
        weight = sum(update.steps for update in before.updates)
        for name, sent in after.received_by(None).tensors.items():
            mean = sum(u.steps * u.tensors[name].double() for u in before.updates) / weight
            errors.append(float((mean - sent).abs().max()))
    return errors


@pytest.mark.slow
def test_the_examples_job_is_captured_whole(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(EXAMPLE))
    environment = {**os.environ, "HOME": str(tmp_path), "OMP_NUM_THREADS": "1"}
    subprocess.run(
        [sys.executable, str(EXAMPLE / "job.py"), "--out", str(tmp_path)],
        check=True, timeout=400, env=environment, cwd=tmp_path, capture_output=True,
    )  # fmt: skip
    capture = tmp_path / "capture"
    truth = collect(capture, [tmp_path / "truth"])
    transcript = read_transcript(capture / "transcript", trust_factory=True)
    assert [len(record.updates) for record in transcript.rounds] == [2, 2, 2]
    assert max(weighted_mean_errors(transcript)) < 1e-6
    checked = check_terms(capture, transcript, truth)
    assert (checked.n, checked.suspect) == (6, "")
    assert checked.error < TOLERANCE
