"""The attacks on one update: what they recover from toys, what they promise, where they refuse."""

import itertools

import pytest
import torch

from glasshouse import registry
from glasshouse.attacks.base import Labels, Reconstruction
from glasshouse.attacks.inversion.dlg import DLG
from glasshouse.attacks.inversion.gradinversion.attack import GradInversion
from glasshouse.attacks.inversion.idlg import IDLG
from glasshouse.attacks.inversion.inverting_gradients import InvertingGradients
from glasshouse.attacks.inversion.label_inference import LabelInference
from glasshouse.attacks.inversion.linear_input import LinearInput
from glasshouse.errors import BadValue, Inapplicable
from glasshouse.images import psnr
from glasshouse.rng import Rng
from glasshouse.testing.toys import toy
from glasshouse.transcript.grants import Grants

RNG = Rng.root(0)
CONVNET = {"model": "convnet", "arguments": {"width": 4}}


def searching(attack, **search):
    """The attack with its own settings but for these of its search."""
    return registry.create(attack, {"search": search})


QUICK = {
    "dlg": searching(DLG, restarts=1, iterations=1),
    "idlg": searching(IDLG, restarts=2, iterations=1),
    "inverting_gradients": searching(InvertingGradients, restarts=2, iterations=3),
    "gradinversion": searching(GradInversion, restarts=2, iterations=3),
    "linear_input": LinearInput(),
    "label_inference": LabelInference(),
}


def quality(made, claim) -> float:
    """Mean PSNR to the private images in the better of all orders."""
    private = made.setting.shard(0).inputs
    orders = itertools.permutations(range(len(private)))
    return max(float(psnr(claim.inputs, private[list(order)]).mean()) for order in orders)


@pytest.mark.parametrize("name", sorted(QUICK))
class TestPromises:
    def test_registered_with_a_card(self, name):
        assert registry.load("attacks", name) is type(QUICK[name])
        assert registry.card("attacks", name).summary

    def test_the_claim_is_well_formed(self, name):
        result = toy(examples=1 if name == "linear_input" else 2)
        (claim,) = QUICK[name].run(result.view(), rng=RNG)
        assert (claim.about.rounds, claim.about.client) == ((0,), 0)
        if isinstance(claim, Labels):
            assert int(claim.counts.sum()) == 2
            return
        assert isinstance(claim, Reconstruction)
        assert claim.inputs.shape == result.setting.shard(0).inputs.shape
        assert claim.inputs.dtype == torch.float32
        assert float(claim.inputs.min()) >= 0
        assert float(claim.inputs.max()) <= 1
        assert claim.labels.shape == claim.confidence.shape == claim.inputs.shape[:1]
        assert not any(t.requires_grad for t in (claim.inputs, claim.labels, claim.confidence))

    def test_same_rng_same_claim_and_nothing_else_is_touched(self, name):
        view = toy().view()
        before = {n: t.clone() for n, t in view.rounds[0].updates[0].tensors.items()}
        state = torch.get_rng_state()
        one, two = (QUICK[name].run(view, rng=RNG)[0] for _ in range(2))
        assert torch.equal(*(c.counts if isinstance(c, Labels) else c.inputs for c in (one, two)))
        assert torch.equal(state, torch.get_rng_state())
        assert all(torch.equal(before[n], t) for n, t in view.rounds[0].updates[0].tensors.items())

    def test_refuses_a_view_without_a_single_update(self, name):
        with pytest.raises(Inapplicable, match="exactly one client's update") as caught:
            QUICK[name].run(toy(secure_sum=True).view(client=None), rng=RNG)
        assert "secure_sum hides them" in caught.value.got


@pytest.mark.parametrize("name", ["dlg", "idlg", "inverting_gradients", "gradinversion"])
@pytest.mark.parametrize("settings", [{"restarts": 0}, {"iterations": 0}])
def test_refuses_no_effort(name, settings):
    with pytest.raises(BadValue, match=f"{next(iter(settings))} >= 1"):
        searching(registry.load("attacks", name), **settings)


@pytest.mark.parametrize("protocol", ["fedsgd", "fedavg"])
def test_linear_input_is_exact(protocol):
    result = toy(protocol=protocol)
    (claim,) = LinearInput().run(result.view(), rng=RNG)
    assert quality(result, claim) > 60
    assert claim.labels.tolist() == result.setting.shard(0).labels.tolist()
    assert claim.confidence > 0


def test_linear_input_refuses():
    with pytest.raises(Inapplicable, match="exactly 1 example") as caught:
        LinearInput().run(toy(examples=2).view(), rng=RNG)
    assert caught.value.got == "round 0, client 0: 2 examples"
    with pytest.raises(Inapplicable, match="first layer that is linear") as caught:
        LinearInput().run(toy(**CONVNET).view(), rng=RNG)
    assert caught.value.got == "'features.conv0', a Conv2d"
    view = toy().view()
    del view.rounds[0].updates[0].tensors["features.fc1.bias"]
    with pytest.raises(Inapplicable, match="not sent with both weight and bias"):
        LinearInput().run(view, rng=RNG)
    view = toy().view()
    view.rounds[0].updates[0].tensors["features.fc1.bias"].zero_()
    with pytest.raises(Inapplicable, match=r"bias gradient of 'features\.fc1' that is not zero"):
        LinearInput().run(view, rng=RNG)


@pytest.mark.parametrize("attack", [IDLG, DLG])
def test_dlg_and_idlg_recover_a_toy_image(attack):
    result = toy(model="lenet_sigmoid", seed=1)
    (claim,) = searching(attack, iterations=60).run(result.view(), rng=RNG)
    assert quality(result, claim) > 30
    assert claim.labels.tolist() == result.setting.shard(0).labels.tolist()


def test_idlg_recovers_a_small_batch():
    result = toy(model="lenet_sigmoid", examples=2, seed=1)
    (claim,) = searching(IDLG, iterations=100).run(result.view(), rng=RNG)
    assert quality(result, claim) > 25


@pytest.mark.parametrize("attack", [InvertingGradients, GradInversion])
def test_matching_beats_its_own_start(attack):
    result = toy(model="lenet5")
    (short,), (long,) = (
        searching(attack, restarts=2, iterations=n).run(result.view(), rng=RNG) for n in (1, 80)
    )
    assert quality(result, long) > quality(result, short) + 3
    assert long.confidence > short.confidence


def test_simulating_local_steps_beats_one_step():
    """Large steps, so that the weights move: what is matched decides what comes out."""
    result = toy(protocol="fedavg", local_epochs=5, learning_rate=1.0)
    (simulated,), (single,) = (
        registry.create(
            InvertingGradients,
            {"search": {"restarts": 1, "iterations": 100}, "tv": 0.0, "local_steps": steps},
        ).run(result.view(), rng=RNG)
        for steps in ("simulate", "one_step")
    )
    assert quality(result, simulated) > quality(result, single) + 5


def test_restarts_are_chosen_by_the_own_loss():
    """More restarts, never a larger loss: the first restart is the same."""
    view = toy(**CONVNET).view()
    few, many = (
        searching(InvertingGradients, restarts=r, iterations=30).run(view, rng=RNG)[0] for r in (1, 4)
    )
    assert float(many.confidence[0]) >= float(few.confidence[0]) - 1e-6


def test_granted_statistics_join_the_loss():
    result = toy(**CONVNET)
    norms = [f"features.bn{i}" for i in range(8)]
    model = result.setting.build(result.setting.terms.architecture)
    granted = {}
    for name in norms:
        size = model.get_submodule(name).num_features
        granted |= {f"{name}.mean": torch.zeros(size), f"{name}.var": torch.full((size,), 4.0)}
    attack = searching(GradInversion, restarts=1, iterations=20)
    (without,) = attack.run(result.view(), rng=RNG)
    (given,) = attack.run(result.view(grants=Grants(batch_norm={(0, 0): granted})), rng=RNG)
    assert not torch.equal(without.inputs, given.inputs)
    partial = {n: t for n, t in granted.items() if "bn3" not in n}
    with pytest.raises(Inapplicable, match=r"none for features\.bn3"):
        attack.run(result.view(grants=Grants(batch_norm={(0, 0): partial})), rng=RNG)


def test_a_batch_may_hold_a_class_twice():
    """More images than classes: GradInversion's rule cannot hold, and counts take over."""
    result = toy(examples=12)
    (claim,) = searching(GradInversion, restarts=1, iterations=1).run(result.view(), rng=RNG)
    assert claim.labels.shape == (12,)
