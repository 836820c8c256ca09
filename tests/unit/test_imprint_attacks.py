"""Robbing the Fed and LOKI: images out of a secure sum; whose they are; where they refuse."""

import pytest
import torch
from linear_attacks import attacked, errors, silenced

from glasshouse.attacks.linear.loki import Loki
from glasshouse.attacks.linear.robbing_the_fed import RobbingTheFed
from glasshouse.errors import BadValue, Inapplicable
from glasshouse.models.build import build
from glasshouse.rng import Rng

RNG = Rng.root(0)


@pytest.mark.parametrize("variant", ["linear", "sparse"])
def test_robbing_the_fed_reads_images_out_of_a_sum(variant):
    attack = RobbingTheFed(bins=400, variant=variant)
    crafted, view, played = attacked(attack, clients=3, examples=2)
    (claim,) = attack.run(view, rng=RNG)
    assert view.rounds[0].aggregate is not None
    assert not view.rounds[0].updates
    assert (errors(claim, played.setting.private) < 1e-5).sum() >= 5
    assert len(claim.inputs) <= 6
    assert crafted.default.architecture.name == "imprint"


def test_the_agreed_weights_stay_behind_the_module():
    crafted, _, played = attacked(RobbingTheFed(bins=8))
    model = build(crafted.default.architecture)
    model.load_state_dict(dict(crafted.default.tensors))
    agreed = build(played.setting.terms.architecture)
    agreed.load_state_dict(dict(played.setting.start))
    x = torch.rand(2, 1, 8, 8)
    inner = dict(model.features.named_children())
    through = model.head(inner["inner"](inner["normalize"](x)))
    torch.testing.assert_close(through, agreed(x))


def test_without_a_secure_sum_the_same_images_come_out():
    attack = RobbingTheFed(bins=400)
    _, view, played = attacked(attack, clients=3, examples=2, secure_sum=False)
    (claim,) = attack.run(view, rng=RNG)
    assert (errors(claim, played.setting.private) < 1e-5).sum() >= 5


@pytest.mark.parametrize(
    "attack", [RobbingTheFed(bins=40), RobbingTheFed(bins=40, variant="sparse"), Loki(width=16)]
)
def test_where_nothing_can_be_read_no_images_are_claimed(attack):
    _, view, _ = attacked(attack, clients=3, examples=2)
    (claim,) = attack.run(silenced(view), rng=RNG)
    assert claim.inputs.shape == (0, 1, 8, 8)
    assert claim.confidence.shape == (0,)


@pytest.mark.parametrize(
    ("protocol", "settings"), [("fedsgd", {}), ("fedavg", {"local_epochs": 3, "learning_rate": 0.05})]
)
def test_loki_reads_images_and_says_whose_they_are(protocol, settings):
    attack = Loki(width=64)
    _, view, played = attacked(attack, protocol=protocol, clients=3, examples=2, **settings)
    (claim,) = attack.run(view, rng=RNG)
    private = played.setting.private
    apart = (claim.inputs.flatten(1)[:, None] - private.inputs.flatten(1)[None]).square().mean(2)
    nearest = apart.min(1)
    good = nearest.values < 1e-3
    assert good.sum() >= 5
    owner = torch.arange(len(private)) // 2
    assert claim.source[good].tolist() == owner[nearest.indices[good]].tolist()


def test_loki_shares_its_bins_among_the_batches_of_a_round():
    """Four batches of one image each: told so, LOKI has bins for all of them."""
    found = {}
    for batches in (0, 4):
        attack = Loki(width=16, local_steps=batches)
        crafted, view, played = attacked(
            attack, protocol="fedavg", clients=3, examples=4, batch_size=1, learning_rate=0.05
        )
        assert len(crafted.memory["thresholds"]) == 16 * max(batches, 1)
        (claim,) = attack.run(view, rng=RNG)
        found[batches] = int((errors(claim, played.setting.private) < 1e-2).sum())
    assert found[4] >= 10
    assert found[4] > found[0]


def test_only_clients_that_answered_are_claimed():
    attack = Loki(width=64)
    _, view, _ = attacked(attack, clients=6, examples=2, dropout=0.5, seed=3)
    dropped = view.rounds[0].aggregate.dropped
    (claim,) = attack.run(view, rng=RNG)
    assert dropped
    assert not set(claim.source.tolist()) & set(dropped)


def test_a_users_own_module_is_refused():
    with pytest.raises(Inapplicable, match="registered model"):
        attacked(RobbingTheFed(), model="glasshouse.models.zoo.mlp:mlp")


@pytest.mark.parametrize(
    "make", [lambda: RobbingTheFed(bins=1), lambda: Loki(width=0), lambda: Loki(local_steps=-1)]
)
def test_bad_settings_are_refused(make):
    with pytest.raises(BadValue, match="attack '"):
        make()
