"""A certificate that is wrong ends the audit with exit code 1 and a sentence; a right one with a note."""

import json
import sys

import pytest

from glasshouse import registry
from glasshouse.cli import main
from glasshouse.report.readings import read
from glasshouse.report.verdicts.answer import overall
from glasshouse.results.files import read_result
from glasshouse.results.outcome import exit_code
from glasshouse.results.records import Result
from glasshouse.results.strength import Proofs

PLUGIN = '''
from dataclasses import dataclass
from typing import ClassVar, final

from glasshouse.attacks.parts.documents import first_trees, needs
from glasshouse.attacks.tabular import Fact, What, facts_of
from glasshouse.registry import Card


@final
@dataclass(frozen=True, kw_only=True)
class Liar:
    """States a count as proved: the announced one, or one more."""

    card: ClassVar[Card] = Card(summary="a count that may be wrong", claims=("facts", "labels"))
    needs: ClassVar = needs()
    budget: ClassVar = None

    more: int = 0

    def run(self, view, *, rng):
        got, _ = first_trees(view, subject="attack 'liar'")
        return (facts_of(got.about, [Fact(what=What.COUNT, value=float(got.update.examples + self.more))]),)
'''
SCENARIO = """
name = "proofs"
[data]
source = "clinic"
examples = 20
auxiliary = 50
[model]
name = "boosted_trees"
[federation]
protocol = "xgb_bagging"
clients = 2
batch_size = 20
[[attacks]]
name = "liar"
more = {more}
[audit]
metrics = ["label_accuracy"]
"""


@pytest.fixture
def liar(tmp_path, monkeypatch):
    """An installed package with an attack that certifies what it likes."""
    info = tmp_path / "liar-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: liar\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[glasshouse.attacks]\nliar = liar_package:Liar\n")
    (tmp_path / "liar_package.py").write_text(PLUGIN)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    registry.look_again()
    yield tmp_path
    registry.look_again()


@pytest.mark.parametrize(("more", "wrong"), [(1, 2), (0, 0)])
def test_a_wrong_proof_ends_with_1_whatever_is_measured(liar, more, wrong):
    (liar / "s.toml").write_text(SCENARIO.format(more=more))
    with pytest.raises(SystemExit) as stop:
        main(["audit", str(liar / "s.toml"), "--out", str(liar / "run")])
    result = read_result(liar / "run" / "result.json")
    assert [(p.stated, p.wrong, p.claim) for p in result.proofs] == [(2, wrong, "facts")]
    assert stop.value.code == (1 if wrong else 3)  # no metric of the scenario scores facts: not shown
    assert exit_code(result) == stop.value.code
    page = (liar / "run" / "report.html").read_text()
    assert ("WRONG PROOF" in page) == bool(wrong)
    assert ("2 are not true" in page) == bool(wrong)
    assert json.loads((liar / "run" / "result.json").read_text())["proofs"][0]["wrong"] == wrong


def test_one_wrong_proof_among_many_decides():
    where = {"scenario": "s", "cell": "c", "attack": "a", "claim": "facts"}
    good, bad = Proofs(**where, stated=99, wrong=0), Proofs(**where, stated=99, wrong=1)
    result = Result(suite="s", proofs=(good, bad))
    answer = overall(read(result))
    assert exit_code(result) == 1
    assert answer.kind == "contradiction"
    assert "99 assertions were proved (facts), but 1 is not true" in answer.qualification
