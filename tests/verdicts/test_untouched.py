"""A metric of another package that works in place changes no other verdict, and is refused."""

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from tests.verdicts.audits import normal
from tests.verdicts.bench import Bench, bench

from glasshouse.audit.scoring import cell
from glasshouse.audit.scoring.judging.untouched import untouched
from glasshouse.errors import BadValue
from glasshouse.metrics.base import Metric, Wording
from glasshouse.registry import Card

CHANGED = ("claimed", "truth", "distractors")


@dataclass(frozen=True, kw_only=True)
class WorksInPlace(Metric):
    """Leaves grey pictures behind."""

    card = Card(summary="works in place")
    wording = Wording(label="in place", sentence="{}", explanation="x", severity="images", order=1)

    changes: str = "truth"
    fails: bool = False

    def score(self, claimed, truth, *, context):
        far = ((claimed - truth) ** 2).flatten(1).mean(1).double().numpy()
        parts = {"claimed": claimed, "truth": truth, "distractors": context.distractors}
        if self.changes:
            parts[self.changes].fill_(0.5)
        if self.fails:
            raise RuntimeError("and then it fails")
        return -far


def scored(metrics: tuple[str, ...]) -> cell.AttackScores:
    random = np.random.default_rng(0)
    one: Bench = bench(12, random, metrics=metrics, margin=0.3)
    one.claims = one.private.inputs + normal(12, random, 0.05)
    return one.scores()


def said(scores: cell.AttackScores) -> list[tuple[object, ...]]:
    return [(one.metric, one.value, one.gain, one.gain_low, one.verdict) for one in scores.findings]


@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize("changes", CHANGED)
def test_what_works_in_place_changes_no_other_verdict(changes, fails, monkeypatch):
    alone = scored(("psnr", "identification"))
    real = cell.load
    monkeypatch.setattr(
        cell,
        "load",
        lambda group, name: (
            (lambda: WorksInPlace(changes=changes, fails=fails)) if name == "mse" else real(group, name)
        ),
    )
    monkeypatch.setattr(cell, "create", lambda made, arguments: made(**arguments))
    beside = scored(("mse", "psnr", "identification"))
    others = [one for one in said(beside) if one[0] != "mse"]
    assert others == said(alone)
    assert [one[-1] for one in others] == ["leaks", "leaks"]
    if changes == "truth" and not fails:  # it gets a copy: what it left is gone
        assert beside.refusals == ()
        return
    (refusal,) = beside.refusals
    assert ("left as they are" in refusal.needs) != fails


def test_what_leaves_them_alone_is_scored(monkeypatch):
    real = cell.load
    monkeypatch.setattr(
        cell,
        "load",
        lambda group, name: (lambda: WorksInPlace(changes="")) if name == "mse" else real(group, name),
    )
    monkeypatch.setattr(cell, "create", lambda made, arguments: made(**arguments))
    assert scored(("mse", "psnr")).refusals == ()


@pytest.mark.parametrize("part", ["private", "heldout", "auxiliary"])
def test_examples_that_were_changed_in_place_are_put_back(part):
    one = bench(4, np.random.default_rng(1))
    one.claims = one.private.inputs.clone()
    run = one.run()
    changed = {
        "private": run.ground.truth.private,
        "heldout": run.ground.heldout,
        "auxiliary": run.book.auxiliary,
    }
    before = changed[part].inputs.clone()
    with pytest.raises(BadValue, match="1 tensors changed in place"), untouched("x", WorksInPlace(), [run]):
        changed[part].inputs.fill_(0.5)
    assert torch.equal(changed[part].inputs, before)
