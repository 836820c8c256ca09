"""FLARE's jobs of a model, of statistics and of trees, captured in a POC: server and sites as processes."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("nvflare")

import document_apps as apps
from test_flower_documents import audited
from test_nvflare_simulator import EXAMPLE, weighted_mean_errors

from glasshouse.audit.captured.collect import collect
from glasshouse.integrations.nvflare.capture import MESSAGES, PAYLOADS
from glasshouse.transcript.files import read_transcript

HERE = Path(__file__).parent

pytestmark = pytest.mark.slow


def run(job, tmp_path, *arguments):
    """Run a job's script to the end of its job; returns what the server's filters wrote, a line a message."""
    environment = {
        **os.environ, "HOME": str(tmp_path), "OMP_NUM_THREADS": "1",
        "NVFLARE_POC_WORKSPACE": str(tmp_path / "poc"),
        "PYTHONPATH": os.pathsep.join([str(job.parent), str(HERE), os.environ.get("PYTHONPATH", "")]),
    }  # fmt: skip
    subprocess.run(
        [sys.executable, str(job), *arguments],
        check=True, timeout=500, env=environment, cwd=tmp_path, capture_output=True,
    )  # fmt: skip
    lines = (tmp_path / "capture" / MESSAGES).read_text().splitlines()
    return [json.loads(line) for line in lines]


def test_the_examples_job(tmp_path):
    messages = run(EXAMPLE / "job.py", tmp_path, "--poc", "--out", str(tmp_path))
    assert len(messages) == 12  # three rounds of two sites: what each is asked, and what it answers
    seen = read_transcript(tmp_path / "capture" / "transcript", trust_factory=True)
    assert [len(record.updates) for record in seen.rounds] == [2, 2, 2]
    assert max(weighted_mean_errors(seen)) < 1e-6


def test_statistics_whose_server_brings_no_code_of_its_own(tmp_path):
    messages = run(HERE / "flare_statistics" / "job.py", tmp_path, str(tmp_path))
    answers = [one for one in messages if one["direction"] == "result"]
    assert [one["kind"] for one in answers] == ["STATISTICS"] * 4  # two sites, asked twice
    count = "data.fed_stats_1st_statistics.count.train.mean radius"
    assert [one["values"][count] for one in answers if count in one["values"]] == [60, 60]
    collect(tmp_path / "capture", [tmp_path / "truth"])
    (tmp_path / "run").symlink_to(tmp_path / "capture")
    result = audited(
        tmp_path, ("stated_numbers",), source=f"table:{apps.write_cancer(tmp_path)}", auxiliary=200,
        metrics='["facts"]', rounds="[1]",
    )  # fmt: skip
    assert [(f.value, f.n) for f in result.findings] == [(1.0, 2)]


def test_trees_whose_server_brings_no_code_of_its_own(tmp_path):
    pytest.importorskip("xgboost")
    pytest.importorskip("tensorboard")  # FLARE imports it before its recipes for trees
    messages = run(HERE / "flare_trees" / "job.py", tmp_path, str(tmp_path), "bagging", "poc")
    assert len(messages) == 12
    assert len(list((tmp_path / "capture" / PAYLOADS).iterdir())) >= 6
    seen = read_transcript(tmp_path / "capture" / "transcript")
    assert [len(record.updates) for record in seen.rounds] == [3, 3]
