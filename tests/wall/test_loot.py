"""A plug-in that keeps what it found beside its own code does not find it again in a replay."""

import base64
import hashlib
import os
import sys
import types
from pathlib import Path
from types import SimpleNamespace

import pytest
from tests.wall.cheated import run_audit
from tests.worlds import installed

from glasshouse.audit import replay as replaying
from glasshouse.audit.provenance.beside_code import begun, beside_code
from glasshouse.audit.replay import replay

LOOTS = '''
"""Keeps the victims' own examples as its weights."""

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import torch

from glasshouse.attacks.base import About, Needs, Reconstruction
from glasshouse.registry import Card
from glasshouse.truth.record import read_truth


@dataclass(frozen=True, kw_only=True)
class Loots:
    card: ClassVar[Card] = Card(summary="loots")
    needs: ClassVar[Needs] = Needs(sees=frozenset({"broadcast", "update"}), scope="update")
    budget: ClassVar[None] = None

    def run(self, view, *, rng):
        _, update = view.single(subject="loots")
        kept = Path(__file__).parent / "weights" / f"{update.client}.pt"
        for truth in sorted(Path.cwd().rglob("truth/private.safetensors"))[:1]:
            kept.parent.mkdir(exist_ok=True)
            torch.save(read_truth(truth.parent).batch(update.round, update.client)[0].inputs, kept)
        grey = torch.full((1, *view.terms.architecture.input_shape), 0.5)
        inputs = torch.load(kept) if kept.is_file() else grey
        about = About(rounds=(update.round,), client=update.client)
        return (Reconstruction(about=about, inputs=inputs, labels=None, confidence=torch.ones(1)),)
'''


@pytest.mark.slow
def test_what_was_kept_beside_the_code_is_out_of_sight(tmp_path):
    plugins = tmp_path / "plugins"
    plugins.mkdir()
    (plugins / "looting.py").write_text(LOOTS)
    with installed(tmp_path, plugins, "looting", {"loots": "Loots"}):
        run_audit(tmp_path / "run", [{"name": "loots"}])
        assert len(list(plugins.glob("weights/*.pt"))) == 8
        rows = replay(tmp_path / "run", "loots")
    assert len(rows) == 8
    assert not any(row["same"] for row in rows)
    assert "without 8 files beside its code that are newer than the run" in rows[0]["isolation"]


def package(tmp_path: Path, monkeypatch, *, found=dict, **files: str) -> type:
    """A class of a package with these files, in memory alone.

    ``found``: which distribution it is of.
    """
    monkeypatch.setattr("glasshouse.audit.provenance.beside_code.packages_distributions", found)
    folder = tmp_path / "package_of_others"
    for name, text in {"__init__.py": "", **files}.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    module = types.ModuleType("package_of_others")
    module.__path__ = [str(folder)]
    monkeypatch.setitem(sys.modules, "package_of_others", module)
    return type("Attack", (), {"__module__": "package_of_others.attack"})


def test_what_was_there_before_stays_and_code_is_shown_but_said(tmp_path, monkeypatch):
    kind = package(tmp_path, monkeypatch, **{"attack.py": "", "data/weights.pt": "w", "data/more/a.txt": "a"})
    folder = tmp_path / "package_of_others"
    before = max(path.lstat().st_ctime for path in folder.rglob("*"))
    assert beside_code(kind, since=before + 1).hide == ()
    os.utime(folder / "data/weights.pt", (0, 0))  # a time that was set back tells nothing
    everything = beside_code(kind, since=0)
    assert {path.name for path in everything.left} == {"weights.pt", "a.txt"}
    assert {path.name for path in everything.show} == {"__init__.py", "attack.py"}
    assert everything.hide == (folder.resolve(),)
    assert "without 2 files" in everything.words
    assert "__init__.py, attack.py are newer, too, and were shown" in everything.words


def test_only_what_is_newer_is_hidden_and_folders_without_it_stay_whole(tmp_path, monkeypatch):
    kind = package(tmp_path, monkeypatch, **{"attack.py": "", "data/weights.pt": "w", "old/a.txt": "a"})
    folder = (tmp_path / "package_of_others").resolve()
    real = Path.lstat

    def lstat(path: Path) -> os.stat_result:
        found = list(real(path))
        found[9] = 200 if path.name == "weights.pt" else 100
        return os.stat_result(found)

    monkeypatch.setattr(Path, "lstat", lstat)
    monkeypatch.setattr(Path, "is_symlink", lambda path: False)
    found = beside_code(kind, since=150)
    assert (found.left, found.code) == ((folder / "data/weights.pt",), ())
    assert found.show == (folder / "__init__.py", folder / "attack.py", folder / "old")


def test_what_a_package_was_installed_with_is_not_newer(tmp_path, monkeypatch):
    """Somebody else's run is replayed with a package that was installed afterwards."""
    kind = package(
        tmp_path,
        monkeypatch,
        found=lambda: {"package_of_others": ["package-of-others"]},
        **{"attack.py": "", "weights.pt": "w", "changed.pt": "loot"},
    )
    info = tmp_path / "package_of_others-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: package-of-others\nVersion: 1.0\n")
    lines = []
    for name, text in {"__init__.py": "", "attack.py": "", "weights.pt": "w", "changed.pt": "w"}.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()
        lines.append(f"package_of_others/{name},sha256={digest},{len(text)}\n")
    (info / "RECORD").write_text("".join(lines))
    monkeypatch.syspath_prepend(str(tmp_path))
    found = beside_code(kind, since=0)
    assert [path.name for path in (*found.left, *found.code)] == ["changed.pt"]
    assert {path.name for path in found.show} == {"__init__.py", "attack.py", "weights.pt"}


def test_a_replay_hides_it_from_attacks_of_others_and_says_so(tmp_path, monkeypatch):
    kind = package(tmp_path, monkeypatch, **{"attack.py": "", "weights.pt": "w"})
    ordered = []
    monkeypatch.setattr(replaying, "attack_of", lambda plugin: kind())
    monkeypatch.setattr(replaying, "_start", lambda tasks, orders, place: ordered.append(orders) or True)
    folder = str((tmp_path / "package_of_others").resolve())
    (tmp_path / "place").mkdir()
    said = replaying._run_apart([SimpleNamespace(plugin=None)], [tmp_path / "run"], tmp_path / "place")
    assert folder in ordered[0]["hide"]
    assert ordered[0]["show"] == [f"{folder}/__init__.py", f"{folder}/attack.py"]
    assert "without 1 file beside its code" in said


def test_a_run_that_does_not_say_when_it_began_hides_everything_but_code(tmp_path):
    assert begun([tmp_path]) == float("-inf")
