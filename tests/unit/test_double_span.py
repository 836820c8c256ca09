"""Double span: rows of a made-up clinic from a gradient, and silence where there is nothing to say."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from glasshouse.attacks.rows.affine import combinations_in
from glasshouse.attacks.rows.double_span import DoubleSpan, is_alone
from glasshouse.attacks.rows.nearby import points_inside
from glasshouse.attacks.rows.signals import Space
from glasshouse.data.tables.clinic import clinic
from glasshouse.interfaces import mean_loss
from glasshouse.modalities.row import Column, Row
from glasshouse.models.build import build, state
from glasshouse.rng import Rng
from glasshouse.transcript.threat import Threat
from glasshouse.transcript.view import RoundView, View
from glasshouse.wire import Architecture, Batch, Broadcast, Terms, Update

SOURCE = clinic("")
ROWS = SOURCE.splits["train"].batch()


def view_of(
    batch: Batch, *, seed: int = 0, noise: float = 0.0, hidden: str = "128,32", gain: float = 1.0,
    dead: float = 0.0,
) -> View:  # fmt: skip
    """What the server sees of one gradient of a small network, weights times ``gain``, some units dead."""
    architecture = Architecture(
        name="mlp", inputs=SOURCE.inputs, task=SOURCE.task, arguments={"hidden": hidden}
    )
    model = build(architecture, rng=Rng.root(seed)).eval()
    parameters = dict(model.named_parameters())
    with torch.no_grad():
        for name, parameter in parameters.items():
            parameter *= gain if name.endswith("weight") else 1.0
        first = next(p for name, p in parameters.items() if name.endswith("bias"))
        first[: int(dead * len(first))] -= 50
    gradient = torch.autograd.grad(mean_loss(model, batch), list(parameters.values()))
    draws = torch.Generator().manual_seed(seed)
    sent = {
        n: g + noise * torch.randn(g.shape, generator=draws)
        for n, g in zip(parameters, gradient, strict=True)
    }
    size = len(batch)
    update = Update(round=0, client=0, kind="gradient", tensors=sent, examples=size)
    broadcast = Broadcast(round=0, architecture=architecture, tensors=state(model))
    terms = Terms(
        protocol="fedsgd", architecture=architecture, sends="gradient", clients=1, cohort=1, batch_size=size
    )
    seen = RoundView(round=0, broadcast=broadcast, updates={0: update})
    return View(terms=terms, threat=Threat(), rounds=(seen,))


def sampled(count: int, seed: int) -> Batch:
    order = torch.randperm(len(ROWS), generator=torch.Generator().manual_seed(seed))
    return ROWS.pick(order[:count])


def right(view: View, batch: Batch) -> tuple[int, int]:
    """Claimed rows, and how many of them are in the batch."""
    claimed = DoubleSpan().run(view, rng=Rng.root(0))[1].inputs
    apart = SOURCE.inputs.distance(claimed, batch.inputs) if len(claimed) else torch.ones(0, 1)
    return len(claimed), int((apart.min(1).values == 0).sum())


@pytest.mark.parametrize("count", [1, 4, 8, 16])
def test_small_batches_are_written_down(count):
    rows = 0
    for seed in range(5):
        batch = sampled(count, seed)
        claimed, hits = right(view_of(batch, seed=seed), batch)
        assert claimed == hits  # a certificate is never wrong
        rows += hits
    assert rows >= 0.95 * 5 * count


def test_a_row_that_occurs_twice_is_claimed_twice_and_not_certified():
    """It may as well be two rows with this mean."""
    batch = sampled(3, 1).pick(torch.tensor([0, 0, 1, 2]))
    reconstruction, _ = DoubleSpan().run(view_of(batch), rng=Rng.root(0))
    assert len(reconstruction.inputs) == 4
    assert right(view_of(batch), batch) == (2, 2)


def test_noise_above_the_span_silences_it():
    batch = sampled(8, 0)
    assert right(view_of(batch, noise=1e-2), batch) == (0, 0)


def test_larger_batches_are_never_claimed_wrong():
    for count in (24, 64):
        batch = sampled(count, 3)
        claimed, hits = right(view_of(batch), batch)
        assert claimed == hits


def test_two_rows_that_only_their_sum_describes_are_not_made_up():
    """Same categories, other numbers: the gradient may hold no more than the sum; a mean is never claimed."""
    others = 0
    for seed in range(10):
        pair = sampled(3, seed)
        twin = SOURCE.inputs.decode(pair.inputs[:1])
        twin[:, 0] = (twin[:, 0] + 4 - 18) % 81 + 18  # age
        twin[:, 8] = (twin[:, 8] + 2) % 41  # visits
        inputs = torch.cat([pair.inputs, SOURCE.inputs.encode(twin)])
        batch = Batch(inputs=inputs, labels=torch.cat([pair.labels, pair.labels[:1]]))
        claimed, hits = right(view_of(batch, seed=seed), batch)
        assert claimed == hits
        others += min(hits, 2)
    assert others >= 18  # the two rows beside the pair are proved although it is not


def test_three_rows_that_may_look_like_one_are_not_one():
    """Two of one label and one of the other count as one row of probability 1/2, and only they do."""
    assert is_alone(0.4, 0, (0.39, 0.41), 3)
    assert not is_alone(0.499, 0, (0.49, 0.51), 3)
    assert is_alone(0.499, 0, (0.49, 0.51), 2)


def test_a_gradient_of_zeros_says_nothing():
    view = view_of(sampled(4, 0))
    update = view.rounds[0].updates[0]
    silent = replace(update, tensors={n: torch.zeros_like(t) for n, t in update.tensors.items()})
    view = replace(view, rounds=(replace(view.rounds[0], updates={0: silent}),))
    assert not len(DoubleSpan().run(view, rng=Rng.root(0))[1].inputs)


def test_numbers_are_moved_until_a_signal_fits():
    """Units that are active hang on the numbers: neither zeros nor the first draws have a row's signal."""
    draws = np.random.default_rng(3)
    smokes = Column(name="smokes", kind="categorical", levels=("no", "yes", "once"))
    numbers = tuple(Column(name=name, kind="continuous", low=0, high=1) for name in "abcd")
    table, people = Row(columns=(smokes, *numbers)), 6
    rows = np.concatenate([np.eye(3)[np.arange(people) % 3], draws.uniform(0.4, 1, (people, 4))], 1)
    weights, sides = 3 * draws.standard_normal((7, 60)), draws.standard_normal(60)

    def signals(points):
        return ((points - 0.5) @ weights > 0)[None] * sides

    space = Space(span=np.linalg.qr(signals(rows)[0].T)[0], signals=signals)
    basis = np.linalg.svd(rows, full_matrices=False)[2][:people]
    found = combinations_in(basis, table, tolerance=1e-6)
    assert len(found.free) == 4 - (7 - people)
    sizes = [len(points) for points in points_inside(found, basis, table, space, draws)]
    assert sizes[0] == 0 < sizes[-1]
