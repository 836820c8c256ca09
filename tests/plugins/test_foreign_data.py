"""A package with a modality, a task, an attack, a metric and a figure has its page, the core untouched."""

import json
import re
import shutil
from html import unescape
from pathlib import Path

import numpy as np
import pytest
from packages import glasshouse, register

PACKAGE = Path(__file__).parent / "bird_calls.py"
ENTRIES = {
    "glasshouse.modalities": {"call": "bird_calls:Call"},
    "glasshouse.tasks": {"direction": "bird_calls:Direction"},
    "glasshouse.attacks": {"listener": "bird_calls:Listener"},
    "glasshouse.metrics": {"call_likeness": "bird_calls:CallLikeness"},
    "glasshouse.figures": {"spectra": "bird_calls:Spectra"},
}
SCENARIO = """
name = "calls"
[data]
source = "arrays:calls.npz"
task = "direction"
examples = 1
auxiliary = 60
heldout = 120
[model]
name = "bird_calls:ear"
[federation]
clients = 8
batch_size = 1
[[attacks]]
name = "listener"
[[attacks]]
name = "label_inference"
[audit]
metrics = ["call_likeness"]
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with the package installed, a file of calls, and a scenario; its audit has run."""
    place = tmp_path_factory.mktemp("calls")
    shutil.copy(PACKAGE, place)
    register(place, "bird-calls", "1.0", ENTRIES)
    draws, time = np.random.default_rng(0), np.arange(24) / 24
    pitches, angles = draws.integers(1, 9, (400, 3)), draws.uniform(-3, 3, (400, 3))
    calls = np.sin(2 * np.pi * pitches[..., None] * time + angles[..., None]).mean(1)
    np.savez(
        place / "calls.npz",
        train_inputs=calls.astype(np.float32),
        train_labels=angles[:, 0].astype(np.float32),
        modality=json.dumps({"name": "call", "fields": {"samples": 24}}),
    )
    (place / "scenario.toml").write_text(SCENARIO)
    done = glasshouse(place, "audit", "scenario.toml", "--out", "out", "--jobs", "1")
    assert done.returncode in (0, 3), done.stdout + done.stderr
    return place


@pytest.fixture(scope="module")
def result(place):
    return json.loads((place / "out" / "result.json").read_text())


@pytest.fixture(scope="module")
def report(place):
    return " ".join(unescape((place / "out" / "report.html").read_text()).split())


def test_the_finding_has_n_interval_null_and_exchange(result):
    (finding,) = result["findings"]
    assert (finding["attack"], finding["metric"], finding["n"]) == ("listener", "call_likeness", 8)
    assert finding["value"] == pytest.approx(1, abs=1e-6)
    assert finding["low"] <= finding["value"] <= finding["high"]
    assert 0 < finding["gain_low"] <= finding["gain"] < 0.9
    assert "call" in finding["baseline"] or finding["baseline"] == "one pure tone"


def test_the_utility_is_that_of_its_task(result):
    assert [row["metric"] for row in result["utility"]] == ["closeness of direction"]


def test_an_attack_that_needs_classes_refuses_by_the_tasks_name(result):
    (refusal,) = result["refusals"]
    assert "label_inference" in refusal["subject"]
    assert refusal["got"] == "task 'direction'"


def test_the_page_speaks_of_calls_and_of_no_picture(report):
    for words in ("Listener wrote down calls with likeness", "Spectra of the calls", "private calls"):
        assert words in report, words
    told = re.sub(r"<[^>]+>", " ", re.sub(r"<(script|style).*?</\1>", " ", report))
    told = told[told.index("All findings") :]
    assert "picture" not in told
    assert "image" not in told
