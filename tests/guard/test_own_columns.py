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
from glasshouse.guard.pursuit.judge import Responses, filled_by
from glasshouse.guard.pursuit.pulls import pulls_of
from glasshouse.guard.pursuit.search import ReadOuts, search


def own_of(dealt: kinds.Pictures) -> Own:
    return Own(inputs=dealt.own[0][:192], targets=dealt.own[1][:192])


def given_by(model: nn.Module, own: Own, name: str) -> float:
    """Share of a batch that fills 32 columns or more of a tensor alone."""
    groups = [group for group in groups_of(pulls_of(model, own).sides) if name in group.names]
    return look(groups, own)[0].given.columns_32


@pytest.mark.parametrize("form", [columns.FORMS["crossed"], columns.Form(bins=32, is_normed=True)])
def test_a_model_that_gates_its_columns_is_refused_and_an_honest_one_passes(dealt, form):
    model, own = columns.gated(dealt.known, 0, form), own_of(dealt)
    assert columns.read(model, columns.update_of(model, dealt.batch), dealt.batch[0]).sum() >= 6
    honest = HonestRanges.of(model, own)
    judged = inspect_in_modes(model, own, honest=honest, modes=("train",))
    assert judged.verdict == "refused"
    assert "columns or more of" in judged.findings[0]
    twin, _ = initialise_again(model, seed=100)
    assert columns.read(twin, columns.update_of(twin, dealt.batch), dealt.batch[0]).sum() == 0
    assert inspect_in_modes(twin, own, honest=honest, modes=("train",)).verdict == "passed"


@pytest.mark.parametrize("form", ["gated", "differences"])
def test_columns_and_their_differences_give_away_more_than_a_twins(dealt, form):
    model, own = columns.gated(dealt.known, 0, columns.FORMS[form]), own_of(dealt)
    assert columns.read(model, columns.update_of(model, dealt.batch), dealt.batch[0]).sum() >= 12
    twin, _ = initialise_again(model, seed=100)
    assert given_by(model, own, "head.weight") > given_by(twin, own, "head.weight") + 0.1


def test_columns_are_seen_where_no_gradient_reaches_the_rows_before_them(dealt):
    """The layers before are trained, too, behind a head of zeros: no row of theirs isolates anything."""
    model = columns.gated(dealt.known, 0).requires_grad_()
    with torch.no_grad():
        model.head.weight.zero_()
    twin, _ = initialise_again(model, seed=100)
    assert given_by(model, own_of(dealt), "head.weight") > given_by(twin, own_of(dealt), "head.weight") + 0.2


@pytest.mark.parametrize("form", ["gated", "running statistics"])
def test_whose_features_stand_in_columns_is_named_and_nothing_of_it_is_sent(dealt, form):
    model = columns.gated(dealt.known, 0, columns.FORMS[form])
    update = columns.update_of(model, dealt.batch)
    seen = columns.read(model, update, dealt.batch[0])
    named = preflight(update, model, *dealt.batch, kind="gradient").standing("features")
    assert set(seen.nonzero()[:, 0].tolist()) <= set(named)
    closed = mitigate(update, model, dealt.batch, kind="gradient")
    if closed.update is not None:
        assert columns.read(model, closed.update, dealt.batch[0]).sum() == 0


def test_noise_over_a_column_hides_whose_it_is(dealt):
    model = columns.gated(dealt.known, 0)
    update = columns.update_of(model, dealt.batch)
    noisy = {name: t + t.std() * torch.randn(t.shape, generator=torch.Generator().manual_seed(1))
             for name, t in update.items()}  # fmt: skip
    assert not preflight(noisy, model, *dealt.batch, kind="gradient").standing("features")


def test_where_rows_and_columns_cross_no_remedy_is_believed(dealt):
    """Nobody can be named, as any column of any row may be what a server reads."""
    model = columns.gated(dealt.known, 0, columns.FORMS["crossed"])
    closed = mitigate(columns.update_of(model, dealt.batch), model, dealt.batch, kind="gradient")
    assert closed.update is None
    assert closed.before.hidden == ("wide.weight",)


def test_columns_are_counted_by_who_fills_them():
    generator = torch.Generator().manual_seed(0)
    shared = torch.randn(128, 200, generator=generator)
    alone = torch.zeros(128, 64 * 40)
    for example in range(32):  # 40 columns each, which nobody else fills
        alone[example, 40 * example : 40 * (example + 1)] = 1.0
    rows = Responses.of_all(torch.ones(128, 3))

    def filled(columns: torch.Tensor) -> dict[str, float]:
        return filled_by(rows, Responses.of(columns, ReadOuts.none()), batch=64)

    found = filled(torch.cat([shared, alone], 1))
    assert found["8"] == found["32"] == pytest.approx(0.25, abs=0.01)
    assert found["128"] == 0
    assert set(filled(shared).values()) == {0.0}


def test_a_difference_of_columns_is_counted_like_a_column():
    """Each threshold's columns are filled by all above it: two neighbours differ for one example."""
    numbers = torch.randn(128, 40, generator=torch.Generator().manual_seed(0))
    nested = torch.cat([numbers * (torch.arange(128) >= start)[:, None] for start in range(16, 112)], 1)
    mixed = nested[torch.randperm(128, generator=torch.Generator().manual_seed(1))]
    rows = Responses.of_all(torch.ones(64, 3))

    def filled(found: ReadOuts) -> float:
        return filled_by(rows, Responses.of(mixed[64:], found), batch=64)["32"]

    assert filled(search(mixed[:64])) > filled(ReadOuts.none()) + 0.3


def test_an_example_is_alone_where_a_row_and_a_column_meet():
    """Eight rows and eight groups of columns, each open for one in eight: each example meets one crossing."""
    examples = torch.arange(64)
    rows = (examples[:, None] % 8 == torch.arange(8)).float()
    blocks = (examples[:, None] // 8 == torch.arange(8)).float()
    columns_of_blocks = Responses.of(blocks.repeat_interleave(32, 1), ReadOuts.none())
    crossed = filled_by(Responses.of(rows, ReadOuts.none()), columns_of_blocks, batch=64)
    assert crossed["32"] == 1.0
    assert crossed["128"] == 0.0
    assert filled_by(Responses.of_all(rows), columns_of_blocks, batch=64)["8"] == 0.0


def test_a_buffer_that_examples_move_in_an_unknown_way_is_not_looked_at(dealt):
    pulls = pulls_of(Ranged(), own_of(dealt))
    assert list(pulls.unseen) == ["largest"]
    assert pulls.coverage.startswith("looked at 2 of 3 tensors")
    assert not pulls_of(Ranged().eval(), own_of(dealt)).unseen


def test_columns_of_a_scale_are_seen_too(dealt):
    """A scale is one row: its numbers are columns."""
    gated = columns.gated(dealt.known, 0)
    model = Scaled(nn.Sequential(nn.Flatten(), gated.first, nn.ReLU(), gated.second, nn.ReLU()))
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


class Ranged(nn.Module):
    """A linear layer that follows the range of its inputs in a buffer, as fake quantisation does."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3 * kinds.SIDE**2, kinds.CLASSES)
        self.register_buffer("largest", torch.zeros(3 * kinds.SIDE**2))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        flat = inputs.flatten(1)
        if self.training:
            self.largest = torch.maximum(self.largest, flat.detach().amax(0))
        logits: torch.Tensor = self.layer(flat)
        return logits
