"""SARIF: what the guard found in a file, for services that show it beside a change."""

import json
import os
from pathlib import Path
from urllib.parse import unquote_to_bytes

import pytest
import torch

from glasshouse.cli import main
from glasshouse.report.sarif import RULE, sarif
from glasshouse.store import write_tensors


def test_the_guard_writes_its_findings(tmp_path, capsys):
    write_tensors(tmp_path / "odd.safetensors", {"fc.weight": torch.ones(8, 64)})
    draw = torch.Generator().manual_seed(0)
    write_tensors(tmp_path / "fine.safetensors", {"fc.weight": torch.randn(8, 64, generator=draw)})
    files = [str(tmp_path / name) for name in ("odd.safetensors", "fine.safetensors")]
    with pytest.raises(SystemExit) as stop:
        main(["guard", *files, "--sarif", str(tmp_path / "out.sarif")])
    assert stop.value.code == 1
    (run,) = json.loads((tmp_path / "out.sarif").read_text())["runs"]
    assert [one["location"]["uri"] for one in run["artifacts"]] == [Path(f).as_uri() for f in files]
    assert len(run["results"]) >= 2
    assert (
        {r["ruleId"] for r in run["results"]}
        == {RULE}
        == {one["id"] for one in run["tool"]["driver"]["rules"]}
    )
    places = [r["locations"][0]["physicalLocation"]["artifactLocation"] for r in run["results"]]
    assert {(p["uri"], p["index"]) for p in places} == {(Path(files[0]).as_uri(), 0)}
    said = capsys.readouterr().out
    assert all(r["message"]["text"] in said for r in run["results"])


def test_relative_paths_stay_relative_and_names_are_escaped():
    log = sarif({Path("models/a b.pt"): ["tensor '\x1b[2J' repeats"]})
    (result,) = log["runs"][0]["results"]
    assert result["locations"][0]["physicalLocation"]["artifactLocation"]["uri"] == "models/a%20b.pt"
    assert "\x1b" not in result["message"]["text"]
    assert len(result["partialFingerprints"]["sentence/v1"]) == 64


@pytest.mark.parametrize(
    ("name", "uri"),
    [("a#b.pt", "a%23b.pt"), ("50%.pt", "50%25.pt"), ("a?b.pt", "a%3Fb.pt"), ("x\udcff.pt", "x%FF.pt")],
)
def test_a_relative_path_is_a_uri_that_leads_to_the_file(name, uri):
    """Anything after a '#' would be a place inside another file."""
    (place,) = sarif({Path(name): []})["runs"][0]["artifacts"]
    assert place["location"]["uri"] == uri
    assert os.fsdecode(unquote_to_bytes(uri)) == name
