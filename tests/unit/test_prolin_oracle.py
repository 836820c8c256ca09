"""The oracle beside PROLIN's detector: whose data it trains on, and what the posterior then calls."""

import numpy as np
import pytest
import torch
from reproduce.prolin_oracle import clients_of, evidence

from glasshouse.attacks.property.prolin_posterior import ProlinPosterior
from glasshouse.rng import Rng
from glasshouse.truth.record import Truth
from glasshouse.wire import Batch


def test_every_client_is_trained_with_and_without_the_example():
    inputs = torch.arange(6.0).view(6, 1, 1, 1)
    private = Batch(inputs=inputs, labels=torch.zeros(6, dtype=torch.long))
    truth = Truth(private=private, shards={0: (0, 1, 2), 1: (3, 4, 5)}, used={}, marked={"membership": (1,)})
    target = Batch(inputs=inputs[4:5], labels=torch.zeros(1, dtype=torch.long))
    pool, without, having = clients_of(truth, target)
    held = [[sorted(pool.inputs.flatten()[rows].tolist()) for rows in some] for some in (without, having)]
    assert held[0] == [[0.0, 1.0, 2.0], [3.0, 3.0, 5.0]]
    assert held[1] == [[1.0, 2.0, 4.0], [3.0, 4.0, 5.0]]
    assert without.shape == having.shape == (2, 3)


@pytest.mark.parametrize(("distance", "right"), [(4.0, True), (0.0, False)])
def test_the_posterior_calls_members_where_the_known_clients_tell_them_apart(distance, right):
    random = np.random.default_rng(0)
    rounds, clients, member = 120, 20, np.arange(20) < 3
    known = random.normal(size=(rounds, 2, 20)) + np.array([0.0, distance])[:, None]
    present = np.stack([random.permutation(np.arange(clients) < 5) for _ in range(rounds)]).astype(float)
    sent = random.normal(size=(rounds, clients)) + distance * member
    sums = (sent * present).sum(1)
    toy = evidence(*(torch.tensor(part) for part in (known, sums, present)))
    _, called = ProlinPosterior().judge(toy, (rounds,), rng=Rng.root(0))
    assert (called[0].numpy() == member).all() == right
