"""The examples of the documentation run, and what they capture can be audited."""

import importlib
from pathlib import Path

import pytest

from glasshouse.audit.captured.collect import collect
from glasshouse.audit.captured.tables import captured_tables
from glasshouse.audit.captured.terms import check_terms
from glasshouse.integrations.flower.in_process import InProcessGrid, run_in_process
from glasshouse.scenario.load import load
from glasshouse.transcript.files import read_transcript

EXAMPLES = Path(__file__).parents[2] / "examples"
CONFIG = {"num-server-rounds": 2, "local-epochs": 1, "batch-size": 16, "learning-rate": 0.05}


@pytest.mark.parametrize(
    ("folder", "package", "capture", "truth"),
    [
        ("flower-quickstart", "quickstart", "capture", "truth"),
        ("flower-secagg", "secagg", "capture-secagg", "truth-secagg"),
    ],
)
def test_an_example_runs_and_is_audited(folder, package, capture, truth, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.syspath_prepend(EXAMPLES / folder)
    server = importlib.import_module(f"{package}.server_app").app
    client = importlib.import_module(f"{package}.client_app").app
    run_in_process(server, InProcessGrid(apps=dict.fromkeys((1, 2, 3), client), run_config=CONFIG))
    place = tmp_path / "glasshouse" / capture
    recorded = collect(place, [tmp_path / "glasshouse" / truth])
    assert len(recorded.used) == 6
    checked = check_terms(place, read_transcript(place / "transcript", trust_factory=True), recorded)
    assert (checked.n, checked.suspect) == (6, "")
    scenario = load(str(EXAMPLES / "flower-quickstart/audit.toml"), captured=captured_tables(place))
    assert scenario.scenarios[0].federation.clients == 3
