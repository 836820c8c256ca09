"""What fixed read-outs get: pulls of every tensor, the search, the judgement, honest ranges, the verdict."""

import copy
import json
from collections.abc import Callable

import pytest
import torch
from benchmarks.guard import kinds
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn import functional as F

from glasshouse.cli.main import main
from glasshouse.errors import BadValue
from glasshouse.examples import Batch
from glasshouse.guard.layers.trace import LayerTrace, trace
from glasshouse.guard.mitigate import mitigate
from glasshouse.guard.preflight import Memory, preflight
from glasshouse.guard.pursuit import crowds
from glasshouse.guard.pursuit import search as searching
from glasshouse.guard.pursuit.examples import Own, goals
from glasshouse.guard.pursuit.found import OF_ROUNDS, look
from glasshouse.guard.pursuit.fresh import initialise_again
from glasshouse.guard.pursuit.groups import groups_of, stacked
from glasshouse.guard.pursuit.inspect import HonestRanges, inspect_in_modes
from glasshouse.guard.pursuit.judge import _batches, dominance, focus_of, judge, rounding
from glasshouse.guard.pursuit.limits import CLEAR, VISIBLE
from glasshouse.guard.pursuit.pulls import pulls_of
from glasshouse.guard.pursuit.search import ReadOuts, fit, search
from glasshouse.guard.pursuit.states import modes_of
from glasshouse.interfaces import losses_of
from glasshouse.store import write_tensors
from glasshouse.tasks.next_token import NextToken
from glasshouse.tasks.regression import Regression
from glasshouse.tokens.vocabulary import Vocabulary


@pytest.fixture(scope="module")
def digits() -> tuple[Tensor, Tensor]:
    pixels, labels = load_digits(return_X_y=True)
    return torch.tensor(pixels / 16).float().reshape(-1, 1, 8, 8)[:600], torch.tensor(labels)[:600]


def network() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(256, 64),
        nn.ReLU(),
        nn.Dropout(0.2),
        nn.Linear(64, 10),
    )


def classifier() -> nn.Sequential:
    torch.manual_seed(2)
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 200), nn.ReLU(), nn.Linear(200, 10))


def linear(model: nn.Sequential, place: int) -> nn.Linear:
    layer = model[place]
    assert isinstance(layer, nn.Linear)
    return layer


def with_bins(model: nn.Sequential, pixels: Tensor, *, rows: int, noise: float = 0.0) -> nn.Sequential:
    """Some units compare brightness with rising thresholds, as in Robbing the Fed, at various scales."""
    brightness = pixels.flatten(1).mean(1)
    thresholds = torch.quantile(brightness, torch.linspace(0.01, 0.99, rows))
    scales = torch.linspace(0.5, 3, rows)
    place = torch.randperm(200)[:rows]
    back = torch.randn(10)
    first, last = linear(model, 1), linear(model, 3)
    with torch.no_grad():
        direction = 1 + noise * torch.randn(64)
        first.weight[place] = scales[:, None] * direction / 64
        first.bias[place] = -scales * thresholds
        last.weight[:, place] = back[:, None] / scales
    return model


def with_trap_weights(model: nn.Sequential, *, scale: float) -> nn.Sequential:
    """Half of each row's weights negative, the other half smaller by a factor (Boenisch et al. 2023)."""
    with torch.no_grad():
        for row in linear(model, 1).weight:
            places = torch.randperm(64)
            sizes = torch.rand(32)
            row[places[:32]] = -sizes
            row[places[32:]] = scale * sizes[torch.randperm(32)]
        linear(model, 1).bias.zero_()
    return model


def with_one_class(model: nn.Sequential) -> nn.Sequential:
    """Only examples of one class reach the layers below (Wen et al. 2022)."""
    with torch.no_grad():
        linear(model, 3).weight[torch.arange(10) != 3] = 0
        linear(model, 3).bias[torch.arange(10) != 3] = 10
    return model


@pytest.mark.parametrize(
    "layer",
    [
        nn.Conv2d(4, 6, 3),
        nn.Conv2d(4, 6, (3, 2), stride=(3, 1), padding=(2, 0), dilation=(2, 1), groups=2),
        nn.Conv2d(4, 4, 3, stride=2, padding=1, dilation=2, padding_mode="reflect", groups=4),
        nn.Conv2d(4, 6, 4, padding="same", padding_mode="circular"),
        nn.Conv2d(4, 48, 5, padding=2, stride=5),  # few positions: by inner products of them
    ],
)
def test_sizes_are_the_lengths_of_contributions(layer: nn.Conv2d) -> None:
    """However a convolution's patches are copied, and whatever is summed first."""
    inputs = torch.randn(19, 4, 13, 12)
    pulls = torch.randn_like(layer(inputs))
    one = LayerTrace(name="conv", layer=layer, inputs=inputs, pulls=pulls)
    expected = (
        torch.cat(
            [torch.einsum("bgnp,bgmp->bgmn", seen, pulls).flatten(1, 2) for seen, pulls in one._positions()]
        )
        .norm(dim=2)
        .double()
    )
    torch.testing.assert_close(one.sizes, expected, rtol=1e-4, atol=1e-4)


def test_the_model_is_left_as_it_was(digits: tuple[Tensor, Tensor]) -> None:
    pixels, labels = digits
    model = network()
    before = {name: t.clone() for name, t in model.state_dict().items()}
    torch.manual_seed(5)
    expected = torch.rand(1)
    torch.manual_seed(5)
    trace(model, pixels[:8], labels[:8])
    assert torch.equal(torch.rand(1), expected)
    assert all(torch.equal(t, before[name]) for name, t in model.state_dict().items())
    assert all(p.grad is None for p in model.parameters())


def own_of(digits: tuple[Tensor, Tensor], count: int = 192) -> Own:
    return Own(inputs=digits[0][:count], targets=digits[1][:count])


class Parameter(nn.Module):
    """A layer that is no module of torch's."""

    def __init__(self) -> None:
        super().__init__()
        self.matrix = nn.Parameter(torch.randn(64, 12) / 8)
        self.head = nn.Linear(12, 10)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.head(torch.relu(inputs.flatten(1) @ self.matrix))


class Recurrent(nn.Module):
    def __init__(self, cell: type[nn.Module]) -> None:
        super().__init__()
        self.cell, self.head = cell(8, 6, batch_first=True), nn.Linear(6, 10)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.head(self.cell(inputs[:, 0])[0][:, -1])


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.block, self.head = nn.MultiheadAttention(8, 2, batch_first=True), nn.Linear(8, 10)

    def forward(self, inputs: Tensor) -> Tensor:
        rows = inputs[:, 0]
        return self.head(self.block(rows, rows, rows)[0].mean(1))


class Words(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table, self.head = nn.Embedding(17, 6), nn.Linear(6, 10)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.head(self.table((inputs.flatten(1) * 16).long()).mean(1))


class Tied(nn.Module):
    """One layer, used twice."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.head = nn.Linear(64, 64), nn.Linear(64, 10)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.head(self.one(self.one(inputs.flatten(1)).relu()))


NETWORKS: dict[str, Callable[[], nn.Module]] = {
    "parameter": Parameter,
    "lstm": lambda: Recurrent(nn.LSTM),
    "gru": lambda: Recurrent(nn.GRU),
    "rnn": lambda: Recurrent(nn.RNN),
    "attention": Attention,
    "embedding": Words,
    "transposed": lambda: nn.Sequential(nn.ConvTranspose2d(1, 2, 3), nn.Flatten(), nn.Linear(200, 10)),
    "weight norm": lambda: nn.Sequential(
        nn.Flatten(), nn.utils.parametrizations.weight_norm(nn.Linear(64, 8)), nn.ReLU(), nn.Linear(8, 10)
    ),
    "tied": Tied,
    "convolution": lambda: nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 10)),
}


@pytest.mark.parametrize("name", NETWORKS)
def test_every_trainable_tensor_is_looked_at_and_its_lengths_are_those_of_each_gradient(
    name: str, digits: tuple[Tensor, Tensor]
) -> None:
    torch.manual_seed(0)
    model, own = NETWORKS[name](), own_of(digits, 12)
    assert pulls_of(model, own).seen == 1
    pulls = pulls_of(model, own, as_sent=True)
    assert not pulls.unseen
    assert pulls.seen == 1
    assert pulls.coverage == f"looked at {pulls.total} of {pulls.total} tensors, 100 %"
    names, weights = zip(*model.named_parameters(), strict=True)
    for i in (0, 7):
        gradients = torch.autograd.grad(goals(model, own[i : i + 1]).sum(), weights, allow_unused=True)
        for tensor, gradient in zip(names, gradients, strict=True):
            length = 0.0 if gradient is None else float(gradient.norm())
            assert float(pulls.lengths[tensor][i]) == pytest.approx(length, rel=1e-3, abs=1e-6), tensor


class Predicting(nn.Module):
    """A numeric answer per picture, by squared loss."""

    task = Regression(targets=2)

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(64, 12), nn.Linear(12, 2)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.head(self.body(inputs.flatten(1)).relu())


class Speaking(nn.Module):
    """The next of 17 tokens, from the one before."""

    task = NextToken(vocabulary=Vocabulary(size=17, pad=0), length=16)

    def __init__(self) -> None:
        super().__init__()
        self.table, self.head = nn.Embedding(17, 6), nn.Linear(6, 17)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.head(self.table(inputs))


def test_a_task_without_classes_is_judged_by_its_own_losses() -> None:
    torch.manual_seed(0)
    numbers = Own(inputs=torch.rand(64, 1, 8, 8), targets=torch.randn(64, 2))
    tokens = Own(inputs=torch.randint(3, 17, (64, 16)), targets=torch.zeros(64, dtype=torch.long))
    for model, own in ((Predicting(), numbers), (Speaking(), tokens)):
        batch = Batch(inputs=own.inputs, labels=own.targets)
        assert torch.equal(goals(model, own), losses_of(model, batch))
        weights = list(model.parameters())
        pulls = pulls_of(model, own)
        gradients = torch.autograd.grad(goals(model, own[3:4]).sum(), weights)
        for (name, _), gradient in zip(model.named_parameters(), gradients, strict=True):
            assert float(pulls.lengths[name][3]) == pytest.approx(float(gradient.norm()), rel=1e-3)
        judged = inspect_in_modes(model, own, honest=HonestRanges.of(model, own))
        assert judged.verdict == "passed", judged.findings


def test_what_cannot_be_looked_at_is_named_and_leaves_a_model_unjudged(digits: tuple[Tensor, Tensor]) -> None:
    class Paired(nn.Module):
        """Its own parameter works on two examples and more alone."""

        def __init__(self) -> None:
            super().__init__()
            self.matrix, self.head = nn.Parameter(torch.randn(64, 12) / 8), nn.Linear(12, 10)

        def forward(self, inputs: Tensor) -> Tensor:
            if len(inputs) < 2:
                raise ValueError("a batch of one")
            return self.head(inputs.flatten(1) @ self.matrix)

    own = own_of(digits, 64)
    pulls = pulls_of(Paired(), own)
    assert list(pulls.unseen) == ["matrix"]
    judged = inspect_in_modes(Paired(), own, honest=HonestRanges.of(Paired(), own))
    assert judged.verdict == "not judged"
    assert judged.summary.startswith("Not judged: matrix could not be looked at: ValueError: a batch of one")
    assert "looked at 2 of 3 tensors" in judged.summary


def test_tensors_that_read_the_same_input_are_one_group(digits: tuple[Tensor, Tensor]) -> None:
    class Parallel(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.left, self.right, self.head = nn.Linear(64, 5), nn.Linear(64, 7), nn.Linear(12, 10)
            self.own = nn.Parameter(torch.randn(64, 12) / 8)

        def forward(self, inputs: Tensor) -> Tensor:
            flat = inputs.flatten(1)
            wide = torch.cat([self.left(flat), self.right(flat)], 1) + flat @ self.own
            return self.head(wide.relu())

    groups = groups_of(pulls_of(Parallel(), own_of(digits, 16)).sides)
    assert ("left.weight", "right.weight", "own") in {group.names for group in groups}
    assert ("head.weight",) in {group.names for group in groups}


def planted(rows: int, seed: int = 0) -> Tensor:
    """Pulls (192, rows) in which row 0 is row 1 plus half of row 2, but for one example in 40."""
    generator = torch.Generator().manual_seed(seed)
    pulls = torch.randn(192, rows, generator=generator) * (torch.rand(192, rows, generator=generator) > 0.5)
    pulls[:, 0] = pulls[:, 1] + 0.5 * pulls[:, 2]
    pulls[::40, 0] += 1
    return pulls


def test_a_combination_is_found_on_one_half_and_isolates_the_other_half_s_examples() -> None:
    pulls = planted(24)
    found = search(pulls[:64])
    single = judge(pulls[64:], ReadOuts.single(24), batch=64)
    both = judge(pulls[64:], found, batch=32)
    assert single.clear == 0
    assert both.hits > 0.3  # in half of the batches of 32 there is one of those
    best = found.rows[both.best][found.weights[both.best] != 0].sort().values
    assert set(best.tolist()) >= {0, 1, 2}
    honest = planted(24)
    honest[::40, 0] -= 1
    assert judge(honest[64:], search(honest[:64]), batch=32).clear == 0


@pytest.mark.parametrize("batch", [8, 64])
@pytest.mark.parametrize("kept", [0.02, 0.3, 1.0])
def test_who_is_judged_is_as_if_every_read_out_were_judged_in_every_batch(kept: float, batch: int) -> None:
    generator = torch.Generator().manual_seed(5)
    pulls = torch.randn(128, 30, generator=generator).double()
    pulls *= torch.rand(128, 30, generator=generator) < kept
    pulls[:, 3] = 0  # a dead row
    read_outs = ReadOuts.single(30) + ReadOuts(
        rows=torch.randint(30, (50, 3), generator=generator),
        weights=torch.randn(50, 3, generator=generator).double(),
    )
    found = judge(pulls, read_outs, batch=batch)
    each = []
    for some in _batches(128, batch):
        mixed = [
            (pulls[some][:, r] * w).sum(1) for r, w in zip(read_outs.rows, read_outs.weights, strict=True)
        ]
        energy = torch.stack(mixed, 1).square()
        each.append(dominance(energy, rounding(read_outs, pulls[some].square().sum(0))))
    d = torch.stack(each)
    assert found.clear == pytest.approx(float((d.amax(2) > CLEAR).double().mean()))
    assert found.visible == pytest.approx(float((d.amax(2) > VISIBLE).double().mean()))
    assert found.visible_alone == pytest.approx(float((d[..., :30].amax(2) > VISIBLE).double().mean()))
    hits = (d.amax(1) > CLEAR).double().mean(0)
    assert found.hits == pytest.approx(float(hits.max()))
    assert hits[found.best] == hits.max()
    largest = d[..., :30].amax(1)
    assert focus_of(pulls, batch=batch) == pytest.approx(
        float((largest.sum(1) / (largest > 0).sum(1).clamp_min(1)).mean())
    )


def test_a_fit_that_is_given_up_would_have_isolated_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    crafted, honest = planted(24), torch.randn(192, 24, generator=torch.Generator().manual_seed(3)).double()
    short = [search(pulls[:64]) for pulls in (crafted, honest)]
    monkeypatch.setattr(searching, "SPIKES", 64)  # more examples than there are: nothing is given up
    whole = [search(pulls[:64]) for pulls in (crafted, honest)]
    for pulls, one, other in zip((crafted, honest), short, whole, strict=True):
        assert len(one.rows) < len(other.rows)
        kept, every = (judge(pulls[64:], found, batch=32) for found in (one, other))
        assert (kept.clear, kept.visible, kept.hits) == (every.clear, every.visible, every.hits)
    assert len(short[1].rows) < 0.1 * len(whole[1].rows)


def test_a_fit_of_a_row_that_equals_others_is_not_given_up_without_an_example_that_tells_them_apart() -> None:
    columns = torch.rand(3, 64, generator=torch.Generator().manual_seed(0), dtype=torch.double)
    columns[0] = columns[1] + columns[2]
    found = fit(columns, torch.tensor([[1, 2]]), torch.tensor([0]))
    assert found.rows.tolist() == [[0, 1, 2]]
    torch.testing.assert_close(found.weights, torch.tensor([[1.0, -1, -1]], dtype=torch.double))


def test_a_support_is_fitted_once_however_often_it_is_proposed() -> None:
    found = search(planted(24)[:64])
    supports = [
        (int(rows[0]), *rows[weights != 0].sort().values.tolist())
        for rows, weights in zip(found.rows, found.weights, strict=True)
        if int((weights != 0).sum()) > 2
    ]
    assert len(set(supports)) == len(supports)


def test_a_direction_that_isolates_nobody_else_isolates_nothing_by_rounding() -> None:
    pulls = torch.rand(64, 1, dtype=torch.double).repeat(1, 2) + 1
    pulls[:, 1] *= 1 + 1e-9
    pulls[0, 1] += 1e-7  # drowns in float32
    read_outs = ReadOuts(rows=torch.tensor([[0, 1]]), weights=torch.tensor([[1.0, -1.0]], dtype=torch.double))
    assert judge(pulls, read_outs, batch=64).clear == 0


def test_honest_models_are_made_by_the_architecture_alone() -> None:
    class Affine(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.full((4,), 1e4))
            self.matrix = nn.Parameter(torch.full((4, 4), 1e4))
            self.register_buffer("offset", torch.full((4,), 1e4))

    model = nn.Sequential(Affine(), nn.BatchNorm1d(4), nn.Linear(4, 2))
    model[1].running_mean.fill_(1e4)
    fresh, helped = initialise_again(model, seed=0)
    assert helped == ("0",)
    assert all(float(t.detach().abs().max()) <= 10 for t in fresh.state_dict().values())
    assert model[0].scale[0].item() == 1e4


def pictures(digits: tuple[Tensor, Tensor], seed: int = 0) -> kinds.Pictures:
    return kinds.pictures(digits[0].repeat(1, 3, 1, 1), digits[1], seed)


@pytest.mark.parametrize("form", ["parallel", pytest.param("parameter", marks=pytest.mark.slow)])
def test_a_kind_that_looks_honest_row_by_row_is_refused_and_its_update_not_closed(form: str) -> None:
    dealt = pictures(whole_digits())
    case = kinds.pairs(form, dealt.known, 0, rows=128)
    own = Own(inputs=dealt.own[0], targets=dealt.own[1])
    honest = HonestRanges.of(case.model, own)
    judged = inspect_in_modes(case.model, own, honest=honest)
    assert judged.verdict == "refused"
    assert any(finding.startswith("fixed combinations of rows of ") for finding in judged.findings)
    twin, _ = initialise_again(case.model, seed=50)
    assert inspect_in_modes(twin, own, honest=honest).verdict == "passed"
    update = kinds.gradient(case.model, *dealt.batch)
    read = set(kinds.read(case, [update], dealt.batch[0])[1].nonzero()[:, 0].tolist())
    memory = Memory(others=(dealt.own[0][:128], dealt.own[1][:128]))
    seen = preflight(update, case.model, *dealt.batch, kind="gradient", memory=memory)
    assert len(read) > 10
    assert read <= set(seen.standing("input"))
    closed = mitigate(update, case.model, dealt.batch, kind="gradient", memory=memory)
    if closed.update is not None:
        assert not kinds.read(case, [closed.update], dealt.batch[0])[1].any()


def test_two_rounds_on_the_same_batch_are_judged_as_one() -> None:
    dealt = pictures(whole_digits())
    case = kinds.rounds(dealt.known, 0, rows=128)
    own = Own(inputs=dealt.own[0], targets=dealt.own[1])
    honest = HonestRanges.of(case.model, own)
    assert not inspect_in_modes(case.earlier, own, honest=honest).findings
    together = inspect_in_modes(case.model, own, honest=honest, earlier=(case.earlier,))
    assert any("a round ago" in finding for finding in together.findings)


@pytest.mark.slow
def test_rounds_with_honest_ones_in_between_are_judged_as_one() -> None:
    dealt = pictures(whole_digits())
    case = kinds.rounds(dealt.known, 0)
    own = Own(inputs=dealt.own[0], targets=dealt.own[1])
    honest = HonestRanges.of(case.model, own)
    between = [initialise_again(case.model, seed=seed)[0] for seed in (40, 41)]
    apart = inspect_in_modes(case.model, own, honest=honest, earlier=(*between, case.earlier))
    assert any("3 rounds ago" in finding for finding in apart.findings)
    forgotten = inspect_in_modes(case.model, own, honest=honest, earlier=between)
    assert not any("ago" in finding for finding in forgotten.findings)


def test_updates_three_rounds_apart_are_checked_together() -> None:
    dealt = pictures(whole_digits())
    case = kinds.rounds(dealt.known, 0)
    past = [case.earlier, *(initialise_again(case.model, seed=seed)[0] for seed in (40, 41))]
    updates = kinds.gradients([*past, case.model], dealt.batch)
    read = kinds.read(case, [updates[0], updates[-1]], dealt.batch[0])[1].nonzero()[:, 0].tolist()
    memory = Memory(others=(dealt.own[0][:128], dealt.own[1][:128]))
    for model, update in zip(past, updates, strict=False):
        memory = memory.after(model, update, most=3)
    seen = preflight(updates[-1], case.model, *dealt.batch, kind="gradient", memory=memory)
    assert len(read) > 10
    assert set(read) <= set(seen.standing("input"))
    memory = memory.after(case.model, updates[-1], most=3)
    assert [model for model, _ in memory.rounds] == [case.model, *past[:0:-1]]
    assert not memory.after(case.model, updates[-1], most=0).rounds


@pytest.mark.parametrize(
    ("make", "least"),
    [
        (lambda known: kinds.halves(known, 0), 0.2),
        (lambda known: kinds.halves(known, 0, wide=("linear", 0.1)), 0.2),
        (lambda known: kinds.halves(known, 0, paired=True), 0.2),
        (lambda known: kinds.halves(known, 0, paired=True, wide=("pointwise", 0.0)), 0.2),
        (lambda known: kinds.halves(known, 0, paired=True, wide=("parameter", 0.0)), 0.2),
        (lambda known: kinds.windows(known, 0, width=13, rows=512), 0.1),
    ],
)
def test_read_outs_of_many_rows_are_found(make, least: float) -> None:
    dealt = pictures(whole_digits())
    case, own = make(dealt.known), Own(inputs=dealt.own[0][:192], targets=dealt.own[1][:192])
    twin, _ = initialise_again(case.model, seed=50)
    found, usual = (
        max(one.given.crowds_visible for one in look(groups_of(pulls_of(model, own).sides), own))
        for model in (case.model, twin)
    )
    assert found > usual + least


@pytest.mark.parametrize(
    "wide",
    [
        pytest.param(("linear", 0.0), marks=pytest.mark.slow),
        ("pointwise", 0.0),
        pytest.param(("parameter", 0.0), marks=pytest.mark.slow),
    ],
)
def test_nothing_is_sent_where_later_units_complete_the_read_outs(wide) -> None:
    """Rows that always fire are made of pairs: preflight cannot name whom they give away, nor close it."""
    dealt = pictures(whole_digits())
    case = kinds.halves(dealt.known, 0, paired=True, wide=wide)
    twin, _ = initialise_again(case.model, seed=50)
    memory = Memory(others=(dealt.own[0][:128], dealt.own[1][:128]))
    for model, is_closed in ((case.model, False), (twin, True)):
        (update,) = kinds.gradients([model], dealt.batch)
        closed = mitigate(update, model, dealt.batch, kind="gradient", memory=memory)
        assert (closed.update is not None) == is_closed
        assert bool(closed.before.hidden) != is_closed
        assert set(closed.before.hidden) <= set(closed.before.unseen)


def test_the_sides_of_a_hyperplane_are_searched_together_however_many_rows_there_are(monkeypatch) -> None:
    """Of 256 rows, 112 that fire for few and 112 for many: each would be a block of its own."""
    monkeypatch.setattr(crowds, "AT_A_TIME", 112)
    monkeypatch.setattr(searching, "AT_A_TIME", 112)
    dealt = pictures(whole_digits())
    case = kinds.halves(dealt.known, 0, below=(0.05, 0.42))
    own = Own(inputs=dealt.own[0][:192], targets=dealt.own[1][:192])
    twin, _ = initialise_again(case.model, seed=50)
    found, usual = (
        max(one.given.crowds for one in look(groups_of(pulls_of(model, own).sides), own))
        for model in (case.model, twin)
    )
    assert found > usual + 0.2


def test_halves_of_two_rounds_are_found_and_those_of_honest_rounds_give_little() -> None:
    dealt = pictures(whole_digits())
    own = Own(inputs=dealt.own[0][:192], targets=dealt.own[1][:192])
    case = kinds.halves_of_rounds(dealt.known, 0)
    twin, _ = initialise_again(case.model, seed=50)
    near = copy.deepcopy(twin)
    with torch.no_grad():
        for p in near.parameters():
            p.mul_(1 + 1e-2 * torch.randn(p.shape, generator=torch.Generator().manual_seed(1)))
    pairs = ((case.earlier, case.model), (twin, near))
    found, usual = (
        max(
            one.given.crowds
            for one in look(stacked(*(pulls_of(m, own) for m in pair)), own, searches=OF_ROUNDS)
        )
        for pair in pairs
    )
    assert found > 0.3
    assert usual < 0.05


def whole_digits() -> tuple[Tensor, Tensor]:
    digits = load_digits()
    order = torch.randperm(len(digits.target), generator=torch.Generator().manual_seed(0))
    images = torch.tensor(digits.images, dtype=torch.float)[order, None] / 16
    noise = 0.02 * torch.rand(len(images), 1, 16, 16, generator=torch.Generator().manual_seed(1))
    return F.interpolate(images, size=16) + noise, torch.tensor(digits.target)[order].long()


def test_crafted_models_are_told_from_honest_ones(digits: tuple[Tensor, Tensor]) -> None:
    own, pixels = own_of(digits), digits[0][200:]
    honest = HonestRanges.of(classifier(), own)
    torch.manual_seed(0)
    crafted = {
        "bins": with_bins(classifier(), pixels, rows=64),
        "bins with noise": with_bins(classifier(), pixels, rows=64, noise=0.5),
        "one class": with_one_class(classifier()),
    }
    for name, model in crafted.items():
        assert inspect_in_modes(model, own, honest=honest).findings, name
    for seed in range(3):
        assert not inspect_in_modes(
            initialise_again(classifier(), seed=60 + seed)[0], own, honest=honest
        ).findings


def test_layers_that_no_example_reaches_are_no_finding(digits: tuple[Tensor, Tensor]) -> None:
    model, own = classifier(), own_of(digits, 64)
    with torch.no_grad():
        linear(model, 1).bias.fill_(-1e4)
    judged = inspect_in_modes(model, own, honest=HonestRanges.of(classifier(), own))
    assert not judged.findings
    assert judged.values["unreached"] > 0


def test_few_examples_are_not_judged(digits: tuple[Tensor, Tensor]) -> None:
    own = own_of(digits, 15)
    judged = inspect_in_modes(classifier(), own, honest=HonestRanges.of(classifier(), own))
    assert judged.verdict == "not judged"
    assert "15 examples are too few, 16 are needed" in judged.summary
    assert not judged.is_in_doubt  # Flower clients with few examples train


def test_what_depends_on_the_batch_is_in_doubt(digits: tuple[Tensor, Tensor]) -> None:
    class Ranked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(64, 10)

        def forward(self, inputs: Tensor) -> Tensor:
            return self.layer(inputs.flatten(1)) * torch.softmax(inputs.flatten(1)[:, :10], dim=0)

    own = own_of(digits, 192)
    judged = inspect_in_modes(Ranked(), own, honest=HonestRanges.of(Ranked(), own))
    assert judged.verdict == "not judged"
    assert judged.is_in_doubt


def test_the_command_ends_with_3_where_nothing_could_be_judged(tmp_path, capsys) -> None:
    from glasshouse.api.guard import architecture
    from glasshouse.models.build import build, state

    model, data = tmp_path / "model.safetensors", tmp_path / "few.npz"
    write_tensors(model, state(build(architecture("mlp 1x8x8 10 hidden=32"))))
    import numpy as np

    np.savez(
        data,
        train_images=np.random.default_rng(0).integers(0, 255, (12, 8, 8), dtype=np.uint8),
        train_labels=np.arange(12)[:, None] % 10,
    )
    line = ["guard", str(model), "--agreed", "mlp 1x8x8 10 hidden=32", "--data", str(data), "--json"]
    with pytest.raises(SystemExit) as stop:
        main(line)
    assert stop.value.code == 3
    assert json.loads(capsys.readouterr().out)["model"]["verdict"] == "not judged"


def test_models_that_overflow_are_refused_in_words(digits: tuple[Tensor, Tensor]) -> None:
    model, own = classifier(), own_of(digits, 64)
    with torch.no_grad():
        linear(model, 1).weight.fill_(float("inf"))
    with pytest.raises(BadValue, match="do not train on a model that overflows"):
        inspect_in_modes(model, own, honest=HonestRanges.of(classifier(), own))


def test_statistics_and_dropout_have_two_modes_and_honest_ones_pass(digits: tuple[Tensor, Tensor]) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Flatten(), nn.Linear(64, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Dropout(), nn.Linear(32, 10)
    )
    own = own_of(digits)
    assert modes_of(model) == ("train", "eval")
    assert modes_of(nn.Linear(2, 2)) == ("train",)
    assert inspect_in_modes(model, own, honest=HonestRanges.of(model, own)).verdict == "passed"
    assert look(groups_of(pulls_of(model, own).sides), own)
    assert model.training
