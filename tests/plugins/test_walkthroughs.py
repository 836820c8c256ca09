"""The walk-throughs: their files are written, their commands run, one after the other, with sizes shrunk."""

import json
import re
import shlex
import tomllib
from pathlib import Path

import numpy as np
import pytest
from packages import glasshouse, glasshouse_each, register, run_python
from sklearn.datasets import load_digits

SLOW = pytest.mark.slow  # whole audits, each command in a process of its own

PAGES = Path(__file__).parents[2] / "docs" / "walkthroughs"
FILE = re.compile(r"^\*\*`([\w./-]+)`\*\*\n\n```\w+\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SHELL = re.compile(r"^```sh\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def walk(page, place, shrink):
    """Write the page's files and run its commands in ``place``: their words and their exit codes, in order.

    Sizes are shrunk: to the ``audit`` of a file go those of its stem, and those of all.
    """
    text = (PAGES / page).read_text()
    for name, content in FILE.findall(text):
        (place / name).write_text(content)
    if (place / "pyproject.toml").exists():
        project = tomllib.loads((place / "pyproject.toml").read_text())["project"]
        register(place, project["name"], project["version"], project["entry-points"])
    codes = {}
    for line in "".join(SHELL.findall(text)).splitlines():
        command, *words = shlex.split(line)
        if command == "python":
            done = run_python(place, [*words, "-p", "no:cacheprovider", "-p", "no:xdist"])
        elif command == "glasshouse":
            stem = Path(words[1]).stem
            small = [f"--set={value}" for value in (*shrink["all"], *shrink.get(stem, ()))]
            done = glasshouse(place, *words, *(small if words[0] == "audit" else ()))
        else:
            continue
        assert done.returncode in (0, 1, 3), done.stdout + done.stderr
        codes[line] = done.returncode
    return codes


def put_digits_for_scans(tmp_path, monkeypatch):
    """Digits, below 5 or not, in the place of chest X-rays."""
    raw = load_digits()
    images = np.round(np.kron(raw.images, np.ones((1, 4, 4)))[:, 2:30, 2:30] * (255 / 16)).astype(np.uint8)
    labels = (raw.target >= 5).astype(int)
    parts = {"train": slice(0, 1300), "test": slice(1300, None)}
    arrays = {f"{split}_images": images[part] for split, part in parts.items()}
    arrays |= {f"{split}_labels": labels[part] for split, part in parts.items()}
    np.savez(tmp_path / "chest_xray_28.npz", **arrays)
    monkeypatch.setenv("GLASSHOUSE_DATA", str(tmp_path))


@SLOW
def test_the_researchers_new_attack_gets_its_table(tmp_path):
    shrink = {"all": ["audit.seeds=[0]", "federation.clients=6", "audit.victims=6", "axes={}"]}
    codes = walk("researcher.md", tmp_path, shrink)
    assert set(codes.values()) == {0}
    result = json.loads((tmp_path / "runs/paper/result.json").read_text())
    assert {f["attack"] for f in result["findings"]} == {"loudest_row", "linear_input"}
    assert all(f["control"]["passed"] and f["verdict"] == "leaks" for f in result["findings"])
    assert any("loudest" in path.read_text() for path in (tmp_path / "tables").glob("*.tex"))


@SLOW
def test_ten_clients_give_their_sentences_away(tmp_path):
    """A GPT-2 of three layers of width 192 in the place of the whole one."""
    pytest.importorskip("peft", reason="the extra 'text'")
    small = ["model.width=192", "model.layers=3", "model.heads=4", "federation.clients=6", "audit.victims=6"]
    few = ["federation.clients=2", "audit.victims=2", "model.width=96"]
    walk("letters.md", tmp_path, {"all": small, "ways-out": few})
    result = json.loads((tmp_path / "runs/letters/result.json").read_text())
    exact = next(f for f in result["findings"] if f["metric"] == "exact_sentences")
    assert exact["verdict"] == "leaks"
    assert exact["value"] > 0.9
    others = json.loads((tmp_path / "runs/ways-out/result.json").read_text())
    verdicts = {f["verdict"] for f in others["findings"]}
    assert "not shown" in verdicts
    assert verdicts <= {"not shown", "no power"}, "of two clients nothing can be shown, nor denied"


@SLOW
def test_the_hospitals_questions_get_an_answer(tmp_path, monkeypatch):
    """Digits, below 5 or not, in the place of chest X-rays."""
    put_digits_for_scans(tmp_path, monkeypatch)
    image = ["attacks.inverting_gradients.search.iterations=20", "audit.controls=false"]
    shrink = {
        "all": ["audit.seeds=[0]"],
        "hospitals": ["federation.rounds=2", "data.examples=40"],
        "small-practice": image,
        "ci": ["federation.clients=6", "audit.victims=6"],
    }
    codes = walk("hospital.md", tmp_path, shrink)
    audits = {line: code for line, code in codes.items() if "audit" in line}
    assert len(audits) == 4
    result = json.loads((tmp_path / "runs/hospitals/result.json").read_text())
    assert {u["epsilon"] is not None for u in result["utility"]} == {True, False}
    assert audits["glasshouse audit ci.toml --out runs/ci"] in (1, 3), "a handful of victims shows no limit"


@SLOW
def test_five_hospitals_read_each_others_trees(tmp_path):
    pytest.importorskip("xgboost", reason="the extra 'trees'")
    small = ["federation.clients=3", "data.examples=30", "federation.batch_size=30", "audit.controls=false"]
    codes = walk("trees.md", tmp_path, {"all": small})
    assert len(codes) == 5
    assert codes["glasshouse guard usual.json --data arrays:usual.npz"] == 1
    assert codes["glasshouse guard coarse.json --data arrays:coarse.npz"] == 0
    result = json.loads((tmp_path / "runs/five/result.json").read_text())
    assert {one["attack"] for one in result["proofs"]} == {"leaf_algebra", "cut_values", "joint_cells"}
    assert not any(one["wrong"] for one in result["proofs"])


@pytest.mark.parametrize("page", [page.name for page in sorted(PAGES.glob("*.md"))])
def test_the_scenarios_of_a_walk_through_are_valid(page, tmp_path, monkeypatch):
    """As they stand on the page, but for data and pretrained weights that are not at hand."""
    text = (PAGES / page).read_text()
    for name, content in FILE.findall(text):
        (tmp_path / name).write_text(content)
    if (tmp_path / "pyproject.toml").exists():
        project = tomllib.loads((tmp_path / "pyproject.toml").read_text())["project"]
        register(tmp_path, project["name"], project["version"], project["entry-points"])
    put_digits_for_scans(tmp_path, monkeypatch)
    scenarios = [path.name for path in tmp_path.glob("*.toml") if "[federation]" in path.read_text()]
    for done in glasshouse_each(tmp_path, [("check", name) for name in scenarios]):
        assert done.returncode == 0, f"{done.args}: {done.stdout}{done.stderr}"
    assert scenarios or page == "trees.md", "nothing was checked"
