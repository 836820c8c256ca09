"""Columns that Soteria hid: solved for where one example's bias gradient determines them, else left out."""

from dataclasses import replace

import pytest
import torch

from glasshouse import registry
from glasshouse.attacks.base import DefenseGuess
from glasshouse.attacks.inversion.ggl.attack import GGL
from glasshouse.attacks.parts import detect
from glasshouse.attacks.parts.matching.distance import objective
from glasshouse.attacks.parts.replica import replica
from glasshouse.attacks.parts.restore import restore_columns
from glasshouse.rng import Rng
from glasshouse.testing.toys import toy

RNG = Rng.root(0)
FEW = 0.15
"""Of lenet_sigmoid's 48 features: 7 hidden, which with the constant are 8 unknowns of 9 equations."""


def received(share, *then, **settings):
    """A client with Soteria (and other defences after it), its federation, and its gradient undefended."""
    chain = [registry.load("defenses", "soteria")(share=share)]
    chain += [registry.load("defenses", name)(**arguments) for name, arguments in then]
    plain, hidden = (toy(model="lenet_sigmoid", defenses=d, **settings) for d in ([], chain))
    before, after = (replica(result.view(), subject="test") for result in (plain, hidden))
    return after, hidden, before.gradient()[f"{before.last_linear()}.weight"]


@pytest.mark.parametrize("protocol", ["fedsgd", "fedavg"])
@pytest.mark.parametrize("seed", range(3))
def test_with_more_classes_than_hidden_features_they_are_found_to_rounding(protocol, seed):
    client, _, whole = received(FEW, protocol=protocol, seed=seed)
    shown = client.gradient()[f"{client.last_linear()}.weight"]
    assert int((shown == 0).all(0).sum()) == int(FEW * shown.shape[1]) == 7
    restored = restore_columns(client)
    assert restored is not None
    assert (restored.dtype, restored.shape) == (whole.dtype, whole.shape)
    assert float((restored - whole).norm()) < 1e-3 * float(whole.norm()) < 0.1 * float((shown - whole).norm())


@pytest.mark.parametrize(
    ("share", "then"),
    [
        (0.2, ()),  # 9 hidden: more unknowns than equations
        (0.8, ()),
        (FEW, [("clip", {"norm": 0.5})]),
        (FEW, [("gaussian_noise", {"std": 0.01})]),
        (FEW, [("quantise", {"bits": 8})]),
    ],
)
def test_what_the_update_does_not_determine_is_not_guessed(share, then):
    client, _, _ = received(share, *then)
    assert restore_columns(client) is None


@pytest.mark.parametrize(("kind", "error"), [(torch.float16, 2e-3), (torch.bfloat16, 2e-2)])
def test_an_update_that_travelled_in_half_precision_is_solved_to_that_rounding(kind, error):
    client, _, whole = received(FEW)
    rounded = {name: t.to(kind).float() for name, t in client.update.tensors.items()}
    restored = restore_columns(replace(client, update=replace(client.update, tensors=rounded)))
    shown = client.gradient()["head.weight"]
    assert (
        float((restored - whole).norm()) < error * float(whole.norm()) < 0.1 * float((shown - whole).norm())
    )


def test_the_true_image_fits_the_restored_update_and_nothing_is_masked():
    client, result, whole = received(FEW)
    finding = detect.detect(client, rng=RNG)
    assert finding.name == "soteria"
    adapted = detect.adaptation(finding, client)
    assert not adapted.masks
    distance = objective(client, distance="squared", adaptive=adapted)
    square = sum(float(t.square().sum()) for t in client.gradient().values())
    missing = float(whole.square().sum()) - float(client.gradient()["head.weight"].square().sum())
    assert distance.target_square == pytest.approx(square + missing, rel=1e-3)
    shard = result.setting.shard(0)
    value = float(distance(shard.inputs[None], shard.labels[None], create_graph=False))
    assert abs(value) < 1e-4 * distance.target_square


def test_several_examples_and_the_papers_way_leave_the_columns_out():
    batch, _, _ = received(FEW, examples=2)
    finding = DefenseGuess(about=batch.about, name="soteria", parameters={"share": FEW})
    one, _, _ = received(FEW)
    for adapted in (detect.adaptation(finding, batch), detect.adaptation(finding, one, restore=False)):
        assert (list(adapted.masks), dict(adapted.restored)) == (["head.weight"], {})


def test_ggl_judges_by_the_restored_update_unless_told_otherwise():
    """Of another image the restored update tells more than the shown columns do; the true image fits both."""
    client, result, _ = received(FEW)
    shard, view = result.setting.shard(0), result.view()
    losses = {
        restore: GGL(restore=restore).objectives((view,), rngs=(RNG,))[0].loss for restore in (True, False)
    }
    other = (shard.inputs.flip(3)[None], shard.labels[None])
    true = (shard.inputs[None], shard.labels[None])
    assert float(losses[True](*other)) > float(losses[False](*other)) > 0
    for loss in losses.values():
        assert abs(float(loss(*true))) < 1e-4 * float(losses[False](*other))
    assert client.images == 1
