"""VGIA: rows and targets out of slabs with a proof, silence without one, and the guard's refusal."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from benchmarks.active import play_out
from linear_attacks import attacked, silenced

import glasshouse as gh
from glasshouse.attacks.rows.slabs import Peeling, Slabs, fit, inside, valid_row
from glasshouse.attacks.rows.vgia import Vgia, best_share, narrowest
from glasshouse.data.tables.clinic import TABLE, clinic
from glasshouse.errors import Inapplicable
from glasshouse.federation.defenses.gaussian_noise import GaussianNoise
from glasshouse.rng import Rng
from glasshouse.tasks.classification import Classification
from glasshouse.tasks.regression import Regression
from glasshouse.wire import Architecture, Batch

RNG = Rng.root(0)
SOURCE = clinic("")
ROWS = SOURCE.splits["train"].batch()
PUBLIC = ROWS.pick(torch.arange(1000, 2000))
WIDE = {"table": TABLE, "arguments": {"hidden": "96,16"}, "clients": 4, "examples": 8}


def play(private, *, task=SOURCE.task, public=PUBLIC, rounds=1, hidden="96,16", seed=0, **how):
    """Claims about the last round of one client under the attack, and the model that it got."""
    architecture = Architecture(name="mlp", inputs=TABLE, task=task, arguments={"hidden": hidden})
    played = play_out(
        Vgia(), private, clients=1, arguments={}, seed=seed, architecture=architecture, auxiliary=public,
        rounds=rounds, **how,
    )  # fmt: skip
    return played.claims[-1], played.transcript.rounds[-1].broadcasts[0]


def held(claims, private):
    """Proved rows, how many of them are private, and whether the labels of the right claims are right."""
    found, proved = claims
    apart = TABLE.distance(found.inputs, private.inputs)
    at = [(i, int(row.argmin())) for i, row in enumerate(apart) if row.min() == 0]
    labels = all(abs(float(found.labels[i]) - float(private.labels[j])) < 0.5 for i, j in at)
    right = (
        (TABLE.distance(proved.inputs, private.inputs) == 0).any(1) if len(proved.inputs) else torch.zeros(0)
    )
    return len(proved.inputs), int(right.sum()), labels


def test_rows_and_labels_come_out_of_a_secure_sum():
    crafted, view, played = attacked(Vgia(), **WIDE)
    private = played.setting.private
    proved, right, labels = held(Vgia().run(view, rng=RNG), private)
    assert proved == right >= 30
    assert labels
    assert crafted.default.architecture == played.setting.terms.architecture


def test_numbers_and_their_rows_take_two_rounds():
    draws = torch.Generator().manual_seed(1)
    targets = torch.rand(2000, generator=draws) * 300
    every = Batch(inputs=ROWS.inputs[:2000], labels=targets)
    private, public = every.pick(torch.arange(48)), every.pick(torch.arange(1000, 2000))
    task = Regression(targets=1)
    claims, _ = play(private, task=task, public=public, rounds=2, hidden="128,16")
    proved, right, labels = held(claims, private)
    assert proved == right >= 46
    assert labels
    (silence,), _ = play(private, task=task, public=public, rounds=1, hidden="128,16")
    assert silence.says_nothing


def test_three_classes_take_two_rounds():
    labels = torch.arange(len(ROWS)) % 3
    every = Batch(inputs=ROWS.inputs, labels=labels)
    private, public = every.pick(torch.arange(48)), every.pick(torch.arange(1000, 2000))
    claims, _ = play(private, task=Classification(classes=3), public=public, rounds=2, hidden="128,16")
    proved, right, correct = held(claims, private)
    assert proved == right >= 46
    assert correct


def test_twins_share_every_slab_and_are_not_claimed():
    private = ROWS.pick(torch.tensor([0, 0, 1, 2, 3, 4]))
    (found, proved), _ = play(private)
    assert len(found.inputs) == len(proved.inputs) == 4
    assert not (TABLE.distance(found.inputs, private.inputs[:1]) == 0).any()


def test_noise_above_one_rows_signal_silences_it():
    for std in (1e-9, 1e-3):
        (_, proved), _ = play(ROWS.pick(torch.arange(16)), defenses=[GaussianNoise(std=std)])
        assert proved.says_nothing


def test_nothing_is_read_from_nothing():
    _, view, _ = attacked(Vgia(), **WIDE)
    assert all(claim.says_nothing for claim in Vgia().run(silenced(view), rng=RNG))


@pytest.mark.parametrize("runs", [12, pytest.param(300, marks=pytest.mark.slow)])
def test_no_proof_is_wrong_also_among_twins(runs):
    total = 0
    for seed in range(runs):
        draws = torch.Generator().manual_seed(seed)
        size = 8 + 7 * (seed % 17)
        people = torch.randint(len(ROWS), (size if seed % 2 else size // 2,), generator=draws)
        private = ROWS.pick(people[torch.randint(len(people), (size,), generator=draws)])
        width = (32, 96, 200)[seed % 3]
        claims, _ = play(private, hidden=f"{width},16", seed=seed)
        proved, right, _ = held(claims, private) if len(claims[0].inputs) else (0, 0, True)
        assert proved == right, f"run {seed}"
        total += proved
    assert total > 5 * runs


def test_the_guard_refuses_all_ten():
    for seed in range(10):
        batch, hidden = ROWS.pick(torch.arange(16)), ("96,16", "64", "256,64")[seed % 3]
        _, sent = play(batch, hidden=hidden, seed=seed)
        assert any("repeat another" in words for words in gh.guard(dict(sent.tensors)).findings)


def test_other_losses_and_models_are_refused():
    def asked(task=SOURCE.task, hidden="96", name="mlp"):
        return Architecture(name=name, inputs=TABLE, task=task, arguments={"hidden": hidden})

    Vgia().check_model(asked())
    with pytest.raises(Inapplicable, match="plain cross-entropy, or squared errors"):
        Vgia().check_model(asked(task=replace(Regression(targets=1), loss_name="absolute")))
    with pytest.raises(Inapplicable, match="at least 12 neurons"):
        Vgia().check_model(asked(hidden="11"))


def test_no_other_numbers_of_rows_have_a_single_rows_signal():
    examples = 24
    share = best_share(0.7, examples)
    unit = narrowest(share, examples)
    assert unit > 0.01
    counts = np.array([(a, b) for a in range(examples + 1) for b in range(examples + 1 - a)])
    signals = counts @ np.array([1 - share, -share])
    for one in ((1, 0), (0, 1), (0, 0)):
        others = signals[(counts != one).any(1)]
        assert np.abs(others - np.array(one) @ np.array([1 - share, -share])).min() >= unit - 1e-9


def test_peeling_takes_off_what_it_knows():
    """Two rows share a slab of the first group, and are apart in the second."""
    rows = TABLE.project(ROWS.inputs[:2]).double().numpy()
    directions = np.random.default_rng(0).normal(size=(2, rows.shape[1]))
    at = directions @ rows.T
    middle = at.mean(1)
    cuts = np.array([[at[0].min() - 1, at[0].max() + 1], [at[1].min() - 1, middle[1]]])
    above = (at[:, None, :] > cuts[:, :, None]).astype(np.float64)
    peeling = Peeling(
        table=TABLE, slabs=Slabs(directions=directions, cuts=cuts), weight=inside(above @ rows),
        signal=inside(above.sum(2)), target=inside(above @ np.array([3.0, 5.0])), single=np.ones(1),
        near=0.05, most=2,
    )  # fmt: skip
    read = peeling.read()
    order = np.argsort(read.targets)
    np.testing.assert_allclose(read.rows[order], rows, atol=1e-6)
    assert read.targets[order].tolist() == [3.0, 5.0]


def test_half_a_category_is_no_row_and_errors_are_infinite_where_nothing_is_left():
    row = TABLE.project(ROWS.inputs[:1])[0].double().numpy()
    assert valid_row(row + 1e-4, TABLE) is not None
    assert valid_row((row + TABLE.project(ROWS.inputs[1:2])[0].double().numpy()) / 2, TABLE) is None
    assert np.isinf(fit(np.eye(2), np.ones((2, 1)))[1]).all()
