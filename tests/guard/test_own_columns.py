"""Columns that one example alone fills: found in a model, named in an update, and closed."""

import pytest
import torch
from benchmarks.guard import columns, kinds
from torch import nn

from glasshouse.guard.mitigate import mitigate
from glasshouse.guard.preflight import preflight
from glasshouse.guard.pursuit.examples import Own
from glasshouse.guard.pursuit.found import look
from glasshouse.guard.pursuit.fresh import initialise_again
from glasshouse.guard.pursuit.groups import groups_of
from glasshouse.guard.pursuit.inspect import HonestRanges, inspect_in_modes
from glasshouse.guard.pursuit.judge import columns_of
from glasshouse.guard.pursuit.pulls import pulls_of


def own_of(dealt: kinds.Pictures) -> Own:
    return Own(inputs=dealt.own[0][:192], targets=dealt.own[1][:192])


def given_by(model: nn.Module, own: Own, name: str) -> float:
    """Share of a batch that fills 32 columns or more of a tensor alone."""
    groups = [group for group in groups_of(pulls_of(model, own).sides) if name in group.names]
    return look(groups, own)[0].given.columns_32


def test_a_model_that_gates_its_columns_is_refused_and_an_honest_one_passes(dealt):
    model, own = columns.gated(dealt.known, 0), own_of(dealt)
    update = kinds.gradient(model, *dealt.batch)["head.weight"]
    assert columns.read(update, dealt.batch[0]).sum() >= 12
    honest = HonestRanges.of(model, own)
    judged = inspect_in_modes(model, own, honest=honest)
    assert judged.verdict == "refused"
    assert "columns or more of head.weight alone" in judged.findings[0]
    twin, _ = initialise_again(model, seed=100)
    twin_update = kinds.gradient(twin, *dealt.batch)["head.weight"]
    assert columns.read(twin_update, dealt.batch[0]).sum() == 0
    assert inspect_in_modes(twin, own, honest=honest).verdict == "passed"


def test_columns_are_seen_where_no_gradient_reaches_the_rows_before_them(dealt):
    """The layers before are trained, too, behind a head of zeros: no row of theirs isolates anything."""
    model = columns.gated(dealt.known, 0).requires_grad_()
    with torch.no_grad():
        model.head.weight.zero_()
    twin, _ = initialise_again(model, seed=100)
    assert given_by(model, own_of(dealt), "head.weight") > given_by(twin, own_of(dealt), "head.weight") + 0.2


def test_whose_features_stand_in_columns_is_named_and_nothing_of_it_is_sent(dealt):
    model = columns.gated(dealt.known, 0)
    update = kinds.gradient(model, *dealt.batch)
    seen = columns.read(update["head.weight"], dealt.batch[0])
    named = preflight(update, model, *dealt.batch, kind="gradient").standing("features")
    assert set(seen.nonzero()[:, 0].tolist()) <= set(named)
    closed = mitigate(update, model, dealt.batch, kind="gradient")
    if closed.update is not None:
        assert columns.read(closed.update["head.weight"], dealt.batch[0]).sum() == 0
    noisy = {name: t + t.std() * torch.randn(t.shape, generator=torch.Generator().manual_seed(1))
             for name, t in update.items()}  # fmt: skip
    assert not preflight(noisy, model, *dealt.batch, kind="gradient").standing("features")


def test_columns_are_counted_by_who_fills_them():
    generator = torch.Generator().manual_seed(0)
    shared = torch.randn(128, 200, generator=generator)
    alone = torch.zeros(128, 64 * 40)
    for example in range(32):  # 40 columns each, which nobody else fills
        alone[example, 40 * example : 40 * (example + 1)] = 1.0
    found = columns_of(torch.cat([shared, alone], 1), batch=64)
    assert found["columns_8"] == found["columns_32"] == pytest.approx(0.25, abs=0.01)
    assert found["columns_128"] == 0
    assert set(columns_of(shared, batch=64).values()) == {0.0}


def test_columns_of_a_scale_are_seen_too(dealt):
    """A scale is one row: its numbers are columns."""
    first, second, _ = columns.gated(dealt.known, 0).children()
    model = Scaled(nn.Sequential(nn.Flatten(), first, nn.ReLU(), second, nn.ReLU()))
    assert given_by(model, own_of(dealt), "scale") > 0.2


class Scaled(nn.Module):
    """A frozen body, a trained scale and a frozen head."""

    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.body = body.requires_grad_(False)
        self.scale = nn.Parameter(torch.ones(columns.BINS * columns.THUMB**2))
        self.head = nn.Linear(len(self.scale), kinds.CLASSES).requires_grad_(False)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.head(self.body(inputs) * self.scale)
        return logits
