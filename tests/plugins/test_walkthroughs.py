"""The walk-throughs: their files are written, their commands run, one after the other, with sizes shrunk."""

import json
import re
import shlex
import tomllib
from pathlib import Path

import numpy as np
import pytest
from packages import glasshouse, register, run_python
from sklearn.datasets import load_digits

PAGES = Path(__file__).parents[2] / "docs" / "walkthroughs"
FILE = re.compile(r"^\*\*`([\w./-]+)`\*\*\n\n```\w+\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SHELL = re.compile(r"^```sh\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def walk(page, place, monkeypatch, shrink):
    """Write the page's files and run its commands; exit codes and outputs of ``glasshouse``, in order."""
    text = (PAGES / page).read_text()
    for name, content in FILE.findall(text):
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_text(content)
    if (place / "pyproject.toml").exists():
        project = tomllib.loads((place / "pyproject.toml").read_text())["project"]
        register(place, project["name"], project["version"], project["entry-points"])
    results = []
    for line in "".join(SHELL.findall(text)).replace("\\\n", " ").splitlines():
        words = shlex.split(line, comments=True)
        if words[:1] == ["python"]:
            done = run_python(place, [*words[1:], "-p", "no:cacheprovider", "-p", "no:xdist"])
            assert done.returncode == 0, done.stdout + done.stderr
        if words[:1] != ["glasshouse"]:
            continue
        small = [f"--set={value}" for value in shrink] if words[1] in ("check", "audit") else []
        done = glasshouse(place, *words[1:], *small, *(["--no-probe"] if words[1] == "check" else []))
        results.append((words[1:], done.returncode, done.stdout + done.stderr))
    return results


def test_the_researchers_new_attack_gets_its_table(tmp_path, monkeypatch):
    shrink = ["audit.seeds=[0]", "federation.clients=6", "audit.victims=6", "axes={}", "audit.distractors=19"]
    results = walk("researcher.md", tmp_path, monkeypatch, shrink)
    assert [code for _, code, _ in results] == [0] * 5, results
    result = json.loads((tmp_path / "runs/paper/result.json").read_text())
    assert {f["attack"] for f in result["findings"]} == {"loudest_row", "linear_input"}
    assert all(f["control"]["passed"] for f in result["findings"])
    assert {c["attack"] for c in result["contrasts"]} | {c.get("other") for c in result["contrasts"]}
    assert "Loudest row" in next((tmp_path / "tables").glob("*.tex")).read_text() or list(
        (tmp_path / "tables").iterdir()
    )


def stand_in(folder):
    """Digits, in the place of chest X-rays: below 5 or not."""
    raw = load_digits()
    images = np.kron(raw.images, np.ones((4, 4)))[:, 2:30, 2:30]
    images, labels = np.round(images * (255 / 16)).astype(np.uint8), (raw.target >= 5).astype(int)
    parts = {"train": slice(0, 1200), "val": slice(1200, 1300), "test": slice(1300, None)}
    arrays = {f"{s}_images": images[part] for s, part in parts.items()}
    np.savez(
        folder / "chest_xray_28.npz", **arrays, **{f"{s}_labels": labels[part] for s, part in parts.items()}
    )
