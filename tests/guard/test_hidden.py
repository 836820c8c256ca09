"""Where a server may hide its rows: tensors, axes, coordinates, mixtures, buffers, batches and modes."""

import math
from collections.abc import Callable

import pytest
import torch
from benchmarks.guard import delayed, hidden, kinds
from benchmarks.guard.parametrised import PARAMETRISED
from torch import Tensor, nn
from torch.nn import functional as F

from glasshouse.guard.layers.views import Uses, uses_of
from glasshouse.guard.mitigate import mitigate
from glasshouse.guard.preflight import Memory, preflight
from glasshouse.guard.pursuit import inspect as inspecting
from glasshouse.guard.pursuit.examples import Own, goals
from glasshouse.guard.pursuit.found import PARTS, Found, Given, look
from glasshouse.guard.pursuit.fresh import initialise_again
from glasshouse.guard.pursuit.groups import groups_of
from glasshouse.guard.pursuit.honest import NOTHING, Range, Ranges
from glasshouse.guard.pursuit.inspect import HonestRanges, _opened, inspect_in_modes
from glasshouse.guard.pursuit.limits import LONGEST, MARGIN, MARGIN_VISIBLE
from glasshouse.guard.pursuit.pulls import pulls_of
from glasshouse.guard.pursuit.rows import Piece, as_rows, divisions, without_rows
from glasshouse.guard.pursuit.states import depends_on_others, modes_of, steps_ahead, train_ahead


def own_of(dealt: kinds.Pictures, count: int = 192) -> Own:
    return Own(inputs=dealt.own[0][:count], targets=dealt.own[1][:count])


class Classes(nn.Module):
    """Digits' classes behind any layers."""

    def __init__(self, *parts: nn.Module, size: int) -> None:
        super().__init__()
        self.parts, self.head = nn.Sequential(nn.Flatten(), *parts), nn.Linear(size, 10)

    def forward(self, inputs: Tensor) -> Tensor:
        out: Tensor = self.head(self.parts(inputs))
        return out


def most_added(model: nn.Module, own: Own) -> float:
    """What combinations add at 30 dB in the worst group."""
    found = look(groups_of(pulls_of(model, own).sides), own)
    return max(max(one.given.excess, one.given.crowds) for one in found)


@pytest.mark.parametrize(
    "disguise",
    [
        "a layer for each row",
        "a vector for each row",
        "four axes",
        "heads",
        "a flat vector",
        "a flat vector of all",
        "a shuffled vector",
        "blocks of a matrix",
        "rows across rows",
        "half of the columns",
        "transposed convolution",
        "mirrored",
        "shifted",
        "own forward pass",
        "behind a frozen layer",
        "behind a buffer",
        "behind a buffer, pooled",
    ],
)
def test_rows_are_found_wherever_they_are(disguise: str, dealt: kinds.Pictures) -> None:
    case, own = hidden.HIDDEN[disguise](dealt.known, 0), own_of(dealt)
    twin, _ = initialise_again(case.model, seed=5)
    assert most_added(case.model, own) > most_added(twin, own) + 0.1


@pytest.mark.parametrize("disguise", PARAMETRISED)
def test_rows_are_found_behind_parametrised_weights(disguise: str, dealt: kinds.Pictures) -> None:
    case, own = PARAMETRISED[disguise](dealt.known, 0), own_of(dealt)
    (update,) = kinds.gradients([case.model], dealt.batch)
    assert kinds.read(case, [update], dealt.batch[0])[0].sum() >= 12
    twin, _ = initialise_again(case.model, seed=5)
    assert most_added(case.model, own) > most_added(twin, own) + 0.1


@pytest.mark.slow
def test_a_crafted_base_of_an_orthogonal_map_is_refused_and_a_drawn_one_passes(dealt: kinds.Pictures) -> None:
    own, case = own_of(dealt), PARAMETRISED["base of an orthogonal map"](dealt.known, 0)
    honest = HonestRanges.of(case.model, own)
    assert inspect_in_modes(case.model, own, honest=honest).verdict == "refused"
    twin, _ = initialise_again(case.model, seed=100)
    judged = inspect_in_modes(twin, own, honest=honest)
    assert (judged.verdict, judged.kept) == ("passed", ())


@pytest.mark.parametrize(
    "disguise",
    [
        "transposed convolution",
        "mirrored",
        "behind a frozen layer",
        pytest.param("a flat vector of all", marks=pytest.mark.slow),
        pytest.param("blocks of a matrix", marks=pytest.mark.slow),
        pytest.param("heads", marks=pytest.mark.slow),
        pytest.param("behind a buffer", marks=pytest.mark.slow),
    ],
)
def test_what_is_read_in_a_disguise_is_named_and_closed(disguise: str, dealt: kinds.Pictures) -> None:
    case = hidden.HIDDEN[disguise](dealt.known, 0)
    (update,) = kinds.gradients([case.model], dealt.batch)
    memory = Memory(others=(dealt.own[0][:64], dealt.own[1][:64]))
    seen, clear = kinds.read(case, [update], dealt.batch[0])
    found = preflight(update, case.model, *dealt.batch, kind="gradient", memory=memory)
    named = {leak.example for leak in found.leaks}
    assert clear.sum() >= 6
    assert len(set(clear.nonzero()[:, 0].tolist()) - named) <= 1
    closed = mitigate(update, case.model, dealt.batch, kind="gradient", memory=memory)
    if closed.update is not None:
        left, _ = kinds.read(case, [closed.update], dealt.batch[0])
        assert left.sum() <= 0.2 * seen.sum()


def test_divisions_leave_out_what_says_nothing() -> None:
    assert divisions((7,), whole=False) == [()]
    assert divisions((1, 7), whole=False) == [()]
    assert divisions((4, 6), whole=False) == [(0,), (1,)]
    assert divisions((4, 6), whole=True)[0] == ()
    assert divisions((1, 1), whole=True) == []
    assert (2,) in divisions((3, 16, 16), whole=False)
    assert divisions((4, 3, 2), whole=False) == [(0,)]


def test_rows_along_axes_are_those_of_the_tensor_written_out() -> None:
    t = torch.arange(24.0).reshape(2, 3, 4)
    rows = as_rows(t, (0, 2))
    assert rows.shape == (8, 3)
    assert rows[5].tolist() == [float(t[1, k, 1]) for k in range(3)]
    left = without_rows(t, (0, 2), [5])
    assert not left[1, :, 1].any()
    assert int((left != t).sum()) == 3
    assert as_rows(t, ()).shape == (1, 24)
    assert not without_rows(t, (), [0]).any()


def test_layers_that_do_what_they_say_are_looked_at_in_one_pass(dealt: kinds.Pictures) -> None:
    own = own_of(dealt, 32)
    plain = pulls_of(Classes(nn.Linear(768, 16), nn.ReLU(), size=16), own)
    assert [side.name for side in plain.sides] == ["parts.1.weight", "head.weight"]
    mixed = hidden.craft(hidden.OwnForward, dealt.known, 0, form="linear").model
    sides = [side for side in pulls_of(mixed, own).sides if side.name == "wide.layer.weight"]
    assert {side.axes for side in sides} == {(0,), (1,)}  # taken for a tensor that nothing is known of


def test_models_whose_examples_meet_are_not_judged(dealt: kinds.Pictures) -> None:
    own = own_of(dealt, 64)

    class Ranked(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x * torch.softmax(x, dim=0)

    honest = {
        "plain": nn.ReLU(),
        "batch norm": nn.BatchNorm1d(16),
        "dropout": nn.Dropout(),
        "layer norm": nn.LayerNorm(16),
    }
    for name, part in honest.items():
        assert not depends_on_others(Classes(nn.Linear(768, 16), part, size=16), own), name
    model = Classes(nn.Linear(768, 16), Ranked(), size=16)
    assert depends_on_others(model, own)
    judged = inspect_in_modes(model, own, honest=HonestRanges.of(model, own))
    assert judged.verdict == "not judged"
    assert "depends on the others of a batch" in judged.summary


def test_a_module_that_differs_in_evaluation_is_tried_in_both_modes(dealt: kinds.Pictures) -> None:
    class Switch(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x if self.training else x.relu()

    model = Classes(nn.Linear(768, 16), Switch(), size=16)
    assert modes_of(model) == ("train",)
    assert modes_of(model, own_of(dealt, 16)) == ("train", "eval")


def test_a_design_in_buffers_is_not_judged_and_honest_buffers_pass(dealt: kinds.Pictures) -> None:
    own = own_of(dealt)
    case = hidden.HIDDEN["gates in buffers"](dealt.known, 0)
    judged = inspect_in_modes(case.model, own, honest=HonestRanges.of(case.model, own))
    assert judged.verdict == "not judged"
    assert "the same buffers (wide.along, wide.limit)" in judged.reason

    class Normalised(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("mean", torch.full((768,), 0.5))
            self.register_buffer("std", torch.full((768,), 0.3))

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = (x - self.mean) / self.std
            return out

    torch.manual_seed(0)
    model = Classes(Normalised(), nn.Linear(768, 32), nn.ReLU(), size=32)
    assert inspect_in_modes(model, own, honest=HonestRanges.of(model, own)).verdict == "passed"


class Patches(nn.Module):
    """Two layers on patches of a picture."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Conv2d(3, 6, 4, stride=4), nn.Conv2d(3, 8, 4, stride=4)
        self.own, self.head = nn.Conv2d(6, 8, 2, groups=2), nn.Linear(16, 10)

    def forward(self, inputs: Tensor) -> Tensor:
        left, right = F.relu(self.left(inputs)), F.relu(self.right(inputs))
        out: Tensor = self.head(torch.cat([self.own(left).mean((2, 3)), right.mean((2, 3))], dim=1))
        return out


def test_layers_on_the_same_patches_are_one_group(dealt: kinds.Pictures) -> None:
    torch.manual_seed(0)
    groups = groups_of(pulls_of(Patches(), own_of(dealt, 32)).sides)
    assert ("left.weight", "right.weight") in [group.names for group in groups]
    assert [group.names for group in groups].count(("own.weight",)) == 1  # 12 numbers say nothing alone


def test_groups_of_a_convolution_that_read_the_same_are_combined(dealt: kinds.Pictures) -> None:
    case = hidden.HIDDEN["convolution in groups"](dealt.known, 0)
    pulls = pulls_of(case.model, own_of(dealt, 32))
    (group,) = [g for g in groups_of(pulls.sides) if "wide.layer.weight" in g.names]
    assert group.pulls.shape == (32, hidden.ROWS)
    assert all(side.directions is not None for side in group.sides)


def test_a_row_that_an_example_does_not_reach_hides_no_other_row(dealt: kinds.Pictures) -> None:
    torch.manual_seed(0)
    one_matrix, vectors = hidden.Net(hidden.Axes()), hidden.Net(hidden.Vectors())
    with torch.no_grad():
        rows = torch.randn(hidden.ROWS, hidden.SIZE) / hidden.SIZE**0.5
        for model in (one_matrix, vectors):
            model.wide.place(rows, torch.zeros(hidden.ROWS))
            model.middle.load_state_dict(one_matrix.middle.state_dict())
            model.head.load_state_dict(one_matrix.head.state_dict())
    own = own_of(dealt, 32)
    (plain,) = [s for s in pulls_of(one_matrix, own).sides if s.name == "wide.matrix" and s.axes == (3,)]
    (group,) = [g for g in groups_of(pulls_of(vectors, own).sides) if "wide.parts.0" in g.names]
    torch.testing.assert_close(group.pulls.abs(), plain.pulls.abs(), rtol=1e-3, atol=1e-5)
    assert group.sides[0].directions is not None
    assert group.sides[0].directions.any(1).all()


Use = Callable[[Tensor, Tensor], Tensor]


class Takes(nn.Module):
    """A vector that is used as someone says, and added to ten logits."""

    def __init__(self, use: Use, size: int = 768) -> None:
        super().__init__()
        self.vector, self.use = nn.Parameter(torch.rand(size)), use

    def forward(self, inputs: Tensor) -> Tensor:
        flat = inputs.flatten(1)
        return flat[:, :10] + self.use(self.vector, flat).sum(1, keepdim=True)


def use_of(model: nn.Module, name: str) -> Uses:
    generator = torch.Generator().manual_seed(0)
    few = Own(inputs=torch.rand(2, 3, 16, 16, generator=generator), targets=torch.tensor([0, 1]))
    return uses_of(lambda: goals(model, few), model, [name], (few.inputs, few.targets))[name]


AS_IT_IS: dict[str, Use] = {
    "a scale": lambda v, x: x * v,
    "its exponential": lambda v, x: x * v.exp(),
    "of length 1": lambda v, x: x * (v / v.norm()),
    "the length of rows": lambda v, x: x @ (v[:, None] * torch.ones(768, 3)),
    "a column": lambda v, x: x @ v[:, None],
    "for every example": lambda v, x: x + v.expand(len(x), -1),
    "beside zeros": lambda v, x: F.linear(x, torch.eye(768), v + torch.zeros(768)),
    "a bias of a state without an example": lambda v, x: (
        torch.addmm(v, torch.zeros(len(x), 5), torch.ones(5, 768)).tanh() * x
    ),
}
IN_PIECES: dict[str, tuple[Use, tuple[tuple[int, tuple[int, ...]], ...]]] = {
    "a positional picture": (
        lambda v, x: (x.view(-1, 3, 16, 16) + v.view(3, 16, 16)).flatten(1),
        ((0, (3, 16, 16)),),
    ),
    "a matrix of its exponentials": (lambda v, x: x[:, :24] @ v.exp().view(24, 32), ((0, (24, 32)),)),
    "a matrix the other way round": (lambda v, x: x[:, :32] @ v.view(24, 32).T, ((0, (24, 32)),)),
    "halves": (lambda v, x: sum(x[:, :384] * part for part in v.chunk(2)), ((0, (384,)), (384, (384,)))),
    "a part as a matrix": (lambda v, x: x[:, :8] @ v[16:80].reshape(8, 8), ((16, (8, 8)),)),
}
MOVED: dict[str, Use] = {
    "turned round": lambda v, x: x[:, :24] @ v.flip(0).view(24, 32),
    "chosen": lambda v, x: x[:, :24] @ v[torch.randperm(768)].view(24, 32),
    "all but one": lambda v, x: x[:, :13] @ v[torch.randperm(768)[:767]].view(13, 59),
    "one of two copies": lambda v, x: x[:, :24] @ (v * torch.ones(2, 768))[1].view(24, 32),
    "of a repeated bias": lambda v, x: (
        x[:, :24] @ (torch.addmm(v, torch.zeros(2, 1), torch.zeros(1, 768)).flip(1)[0].view(24, 32))
    ),
}
UNCLEAR: dict[str, Use] = {
    "transformed": lambda v, x: x[:, :5] @ torch.fft.rfft(v).real[:160].view(5, 32),
    "continued": lambda v, x: x[:, :25] @ F.pad(v, (1, 31)).view(25, 32),
    "mixed": lambda v, x: x[:, :24] @ (torch.eye(768) @ v).view(24, 32),
    "normalised": lambda v, x: x[:, :24] @ F.layer_norm(v, (768,)).view(24, 32),
}
OF_AXES: dict[str, tuple[Use, bool, bool]] = {  # of (24, 32): is it used in pieces, is it unclear
    "as it is": (lambda w, x: x[:, :32] @ w.T, False, False),
    "its rows in another order": (lambda w, x: x[:, :32] @ w[torch.randperm(24)].T, False, False),
    "divided by its length": (lambda w, x: x[:, :32] @ (w / w.norm(dim=1, keepdim=True)).T, False, False),
    "its upper half": (lambda w, x: x[:, :32] @ w.triu().T, False, False),
    "its lower half": (lambda w, x: x[:, :32] @ w.tril().T, False, False),
    "mixed along an axis": (lambda w, x: x[:, :32] @ (torch.rand(5, 24) @ w).T, False, False),
    "in one row": (lambda w, x: x * w.flatten(), False, False),
    "viewed as another": (lambda w, x: x[:, :48] @ w.view(16, 48).T, True, False),
    "in more axes": (lambda w, x: x[:, :32] @ w.view(4, 6, 32).sum(1).T, True, False),
    "turned and taken apart": (lambda w, x: x[:, :48] @ w.T.reshape(16, 48).T, True, False),
    "shuffled": (lambda w, x: x[:, :32] @ w.flatten()[torch.randperm(768)].view(24, 32).T, True, False),
    "some columns": (lambda w, x: x[:, :16] @ w[:, :16].T + x[:, :32] @ w.T, True, False),
    "a product taken apart": (
        lambda w, x: x[:, :48] @ (torch.rand(24, 24) @ w).T.reshape(16, 48).T,
        False,
        True,
    ),
    "transformed": (lambda w, x: x[:, :5] @ torch.fft.rfft(w.flatten()).real[:160].view(5, 32), False, True),
}


@pytest.mark.parametrize("use", AS_IT_IS)
def test_a_vector_that_is_used_as_it_is_has_no_pieces(use: str) -> None:
    uses = use_of(Takes(AS_IT_IS[use]), "vector")
    assert (len(uses.pieces), uses.unclear) == (0, "")


@pytest.mark.parametrize("use", IN_PIECES)
def test_the_pieces_are_those_that_the_forward_pass_takes(use: str) -> None:
    takes, pieces = IN_PIECES[use]
    uses = use_of(Takes(takes), "vector")
    for found, (start, shape) in zip(uses.pieces, pieces, strict=True):
        assert torch.equal(found, start + torch.arange(math.prod(shape)).view(shape))
    assert not uses.unclear


@pytest.mark.parametrize("use", MOVED)
def test_numbers_are_followed_to_where_they_are_used(use: str) -> None:
    """The rows of the piece are what a picture is multiplied by."""
    model = Takes(MOVED[use])
    with torch.no_grad():
        model.vector.copy_(torch.rand(768))
    generator = torch.Generator().manual_seed(0)
    flat = torch.rand(2, 768, generator=generator)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        expected = model.use(model.vector, flat)
    (places,) = use_of(model, "vector").pieces
    matrix = model.vector[places]
    assert any(
        torch.allclose(flat[:, : len(t)] @ t, expected, atol=1e-4)
        for t in (matrix, matrix.T)
        if t.shape[1] == expected.shape[1]
    )


@pytest.mark.parametrize("use", OF_AXES)
def test_a_matrix_is_what_the_forward_pass_takes_it_for(use: str) -> None:
    takes, in_pieces, is_unclear = OF_AXES[use]
    model = Takes(takes)
    model.vector = nn.Parameter(torch.rand(24, 32))
    uses = use_of(model, "vector")
    assert (bool(uses.pieces), bool(uses.unclear)) == (in_pieces, is_unclear)
    assert uses.is_own == (not in_pieces or use == "some columns")


@pytest.mark.parametrize("use", UNCLEAR)
def test_a_vector_whose_numbers_change_places_is_not_looked_at(use: str) -> None:
    model = Takes(UNCLEAR[use])
    assert use_of(model, "vector").unclear == "its numbers change places before they are used"
    generator = torch.Generator().manual_seed(0)
    own = Own(inputs=torch.rand(20, 3, 16, 16, generator=generator), targets=torch.arange(20) % 10)
    seen = pulls_of(model, own)
    assert set(seen.unseen) == {"vector"}
    assert seen.seen == 0


def test_rows_of_a_piece_are_those_of_the_vector() -> None:
    vector, piece = torch.arange(20.0), Piece(places=3 + torch.arange(12).view(3, 4), axes=(1,))
    assert as_rows(vector, piece).tolist() == [[3 + k, 7 + k, 11 + k] for k in range(4)]
    left = without_rows(vector, piece, [1])
    assert (left != vector).nonzero()[:, 0].tolist() == [4, 8, 12]
    assert vector[4] == 4


@pytest.mark.parametrize("disguise", delayed.DELAYED)
def test_what_opens_in_local_training_is_seen_ahead(disguise: str, dealt: kinds.Pictures) -> None:
    case, own = delayed.DELAYED[disguise](dealt.known, 0), own_of(dealt)
    twin, _ = initialise_again(case.model, seed=5)
    ahead, usual = train_ahead(case.model, own), train_ahead(twin, own)
    assert ahead is not None
    assert usual is not None
    assert most_added(case.model, own) == 0
    assert most_added(ahead, own) > most_added(usual, own) + 0.1


def test_a_verdict_says_after_how_many_steps_a_read_out_opens(dealt: kinds.Pictures) -> None:
    case, own = delayed.DELAYED["behind the head of zeros"](dealt.known, 0), own_of(dealt)
    nothing = HonestRanges(measure=lambda mode, steps: Ranges(), measure_rounds=lambda mode, models: NOTHING)
    judged = inspect_in_modes(case.model, own, honest=nothing)
    assert judged.verdict == "refused"
    assert judged.findings[0].startswith(f"after {steps_ahead(own)} steps of training on your examples, ")


def test_nobody_knows_the_steps_without_the_examples(dealt: kinds.Pictures) -> None:
    own = own_of(dealt)
    counts = {steps_ahead(own[start : start + 16]) for start in range(0, 160, 16)}
    assert steps_ahead(own) == steps_ahead(own_of(dealt))
    assert len(counts) > 3


class Times(nn.Module):
    """Logits of another model, times a number."""

    def __init__(self, model: nn.Module, number: float) -> None:
        super().__init__()
        self.model, self.number = model, number

    def forward(self, inputs: Tensor) -> Tensor:
        logits: Tensor = self.model(inputs) * self.number
        return logits


def test_a_model_whose_gradients_are_not_finite_cannot_be_trained(dealt: kinds.Pictures) -> None:
    own, model = own_of(dealt, 64), nn.Sequential(nn.Flatten(), nn.Linear(hidden.SIZE, 10))
    assert train_ahead(Times(model, math.inf), own) is None
    assert train_ahead(model, own) is not None


def test_a_step_ahead_moves_weights_by_a_tenth_at_most(dealt: kinds.Pictures) -> None:
    own, model = own_of(dealt, 64), nn.Sequential(nn.Flatten(), nn.Linear(hidden.SIZE, 10))
    ahead = train_ahead(Times(model, 1e6), own)
    assert ahead is not None
    before, after = (torch.cat([p.detach().flatten() for p in m.parameters()]) for m in (model, ahead))
    moved = float((after - before).norm() / before.norm())
    assert 0.01 < moved <= (1 + LONGEST) ** steps_ahead(own) - 1


def given(**more: float) -> Given:
    """What a group gives away: nothing but ``more``."""
    return Given(**{**dict.fromkeys(PARTS, 0.0), **more})


@pytest.mark.parametrize("measure", ["rows", "excess", "crowds", "excess_visible"])
def test_what_opens_passes_the_limit_and_what_it_was_by_a_margin(measure: str) -> None:
    margin = MARGIN_VISIBLE if measure.endswith("visible") else MARGIN
    limit = given(**{measure: 0.2})
    honest = Range(most=limit, limits=limit, focused=limit)

    def opens(share: float, before: float = 0.0, name: str = "wide.weight") -> bool:
        first, later = (
            Found(names=(where, "wide.bias")[:count], given=given(**{measure: x}), rows=2, hits=1.0)
            for where, x, count in ((name, before, 1), ("wide.weight", share, 2))
        )
        return _opened(later, [first], honest)

    assert opens(0.2 + margin + 0.01)
    assert not opens(0.2 + margin - 0.01)
    assert not opens(0.4, before=0.4 - margin + 0.01)
    assert opens(0.4, before=0.4 - margin - 0.01)
    assert opens(0.4, before=0.9, name="head.weight")


def test_a_model_that_nobody_can_train_is_not_judged(
    dealt: kinds.Pictures, monkeypatch: pytest.MonkeyPatch
) -> None:
    own, model = own_of(dealt, 64), nn.Sequential(nn.Flatten(), nn.Linear(hidden.SIZE, 10))
    nothing = HonestRanges(measure=lambda mode, steps: Ranges(), measure_rounds=lambda mode, models: NOTHING)
    monkeypatch.setattr(inspecting, "train_ahead", lambda model, own: None)
    judged = inspect_in_modes(model, own, honest=nothing)
    assert judged.verdict == "not judged"
    assert "not finite" in judged.reason
    monkeypatch.setattr(inspecting, "train_ahead", lambda model, own: Times(model, math.inf))
    assert inspect_in_modes(model, own, honest=nothing).verdict == "not judged"
