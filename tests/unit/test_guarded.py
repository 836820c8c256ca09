"""The one guard: whatever a plug-in of any kind raises is a refusal that names it, and all else is kept."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar, final

import numpy as np
import pytest
import torch
from tests.unit.scoring_toys import bench, claim, images, run_of

from glasshouse.audit import guarded
from glasshouse.audit.scoring import cell as module
from glasshouse.audit.scoring.tasks import CellTask
from glasshouse.errors import DiskFull
from glasshouse.metrics.base import Metric, ScoreContext, Wording
from glasshouse.metrics.reconstruction import Ssim
from glasshouse.registry import Card
from glasshouse.scenario.axes import cells
from glasshouse.scenario.load import load
from glasshouse.scenario.table import Plugin
from glasshouse.wire import Refusal


@final
@dataclass(frozen=True, kw_only=True)
class Raises(Metric):
    """A metric of another package with a bug."""

    card: ClassVar[Card] = Card(summary="raises")
    wording: ClassVar[Wording] = Wording(label="raises", sentence="raised {}", explanation="Raises.")

    def score(self, claimed, truth, *, context):
        raise ZeroDivisionError("a bug")


@pytest.mark.parametrize("kind", sorted(guarded.KINDS))
def test_what_raises_is_a_refusal_that_names_the_plug_in(kind):
    answer = guarded.call(kind, "theirs", lambda: 1 / 0, about="of attack 'dlg'")
    assert isinstance(answer, Refusal)
    assert answer.subject == f"{kind} 'theirs' of attack 'dlg'"
    assert "ZeroDivisionError" in answer.got
    assert guarded.call(kind, "theirs", lambda: 5) == 5


def test_a_full_disk_is_no_plug_in_s_fault():
    def work():
        raise DiskFull("x", needs="space", got="none", fix="free some")

    with pytest.raises(DiskFull):
        guarded.call("metric", "theirs", work)


def test_ssim_on_pictures_of_one_row_is_a_refusal():
    one = torch.rand(1, 1, 1, 30)
    answer = guarded.call("metric", "ssim", lambda: Ssim().score(one, one, context=ScoreContext()))
    assert isinstance(answer, Refusal)
    assert answer.subject == "metric 'ssim'"


def test_a_metric_that_raises_costs_itself_alone(monkeypatch):
    ours = module.load
    monkeypatch.setattr(module, "load", lambda group, name: Raises if name == "theirs" else ours(group, name))
    scenario = load("dlg", []).scenarios[0]
    metrics = (Plugin(name="psnr"), Plugin(name="theirs"), Plugin(name="mse"))
    cell = cells(scenario)[0]
    audited = replace_metrics(cell, metrics)
    private = images(4)
    run = run_of(bench(private), {c: (claim(c, private[c : c + 1]),) for c in range(4)})
    scores = module.score_attack(
        CellTask(cell=audited, groups=(), run=str(Path()), controls={}), scenario.attacks[0], [run]
    )
    assert [f.metric for f in scores.findings] == ["psnr", "mse"]
    (refusal,) = scores.refusals
    assert refusal.subject == f"metric 'theirs' of attack '{scenario.attacks[0].name}'"
    assert "a bug" in refusal.got
    assert np.isfinite(scores.findings[0].value)


def test_single_victims_speak_for_metrics_of_their_own_kind_of_claim_alone():
    """What the pictures say of each victim is no share of the labels that were read beside them."""
    scenario = load("dlg", []).scenarios[0]
    cell = replace_metrics(cells(scenario)[0], [Plugin(name=n) for n in ("psnr", "mse", "label_accuracy")])
    private = images(4)
    labelled = {
        c: (replace(claim(c, private[c : c + 1]), labels=torch.zeros(1, dtype=torch.long)),) for c in range(4)
    }
    run = run_of(bench(private, heldout=199), labelled)
    task = CellTask(cell=cell, groups=(), run=str(Path()), controls={})
    shares = {f.metric: f.share for f in module.score_attack(task, scenario.attacks[0], [run]).findings}
    assert shares["psnr"] is not None
    assert shares["mse"] == shares["psnr"]
    assert shares["label_accuracy"] is None


def replace_metrics(cell, metrics):
    audit = cell.scenario.audit.model_copy(update={"metrics": metrics})
    return replace(cell, scenario=cell.scenario.model_copy(update={"audit": audit}))
