"""GGL's refinement in the features of an inner stage of the generator."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from glasshouse.attacks.inversion.ggl.attack import GGL
from glasshouse.attacks.inversion.ggl.objective import Fit
from glasshouse.attacks.inversion.ggl.refine import Refinement, Staged, refine
from glasshouse.attacks.inversion.ggl.search import LatentSearch
from glasshouse.attacks.inversion.ggl.wgan import Generator
from glasshouse.attacks.objective import collect_losses, thinned
from glasshouse.attacks.parts.matching.distance import objective
from glasshouse.attacks.parts.replica import replica
from glasshouse.errors import BadValue, Inapplicable
from glasshouse.rng import Rng
from glasshouse.testing.toys import toy

RNG = Rng.root(0)


def small(input_shape, classes, *, latent):
    torch_state = torch.get_rng_state()
    torch.manual_seed(0)
    generator = Generator(tuple(input_shape), latent=latent, width=4)
    torch.set_rng_state(torch_state)
    return generator


class Unstaged(nn.Module):
    def forward(self, latent, labels):
        return latent.sigmoid().reshape(-1, 1, 8, 8)


def unstaged(input_shape, classes, *, latent):
    return Unstaged()


ATTACK = GGL(
    generator=f"{__name__}:small",
    latent=8,
    search=LatentSearch(optimizer="adam", evaluations=3, restarts=3),
    refinement=Refinement(steps=20, stage=0),
)


def fit_of(result, generator):
    client = replica(result.view(), subject="test")
    labels = result.setting.shard(0).labels
    return Fit(distance=objective(client, distance="squared"), prior=generator, labels=labels[None], latent=8)


@pytest.mark.parametrize("classes", [0, 10])
@pytest.mark.parametrize("shape", [(1, 8, 8), (3, 28, 28), (3, 32, 32)])
def test_a_generator_entered_at_any_stage_draws_the_same(shape, classes):
    generator = Generator(shape, latent=8, width=4, classes=classes).eval()
    assert isinstance(generator, Staged)
    latent, labels = torch.randn(3, 8, generator=RNG.torch()), torch.tensor([0, 1, 9])
    with torch.no_grad():
        whole = generator(latent, labels)
        for stage in range(generator.depth):
            features = generator.features(latent, labels, stage=stage)
            assert features.shape[2] == 4 * 2**stage
            assert torch.equal(generator.draw(features, stage=stage), whole)


def test_every_trial_comes_nearer_to_the_update_and_none_gets_worse():
    result = toy(examples=2)
    fit = fit_of(result, small((1, 8, 8), 10, latent=8).eval().requires_grad_(False))
    points = torch.randn(3, 16, generator=RNG.torch())
    labels = fit.labels.expand(3, -1)
    before = fit.distance(fit.images(points, labels), labels, create_graph=False, victims=(0,) * 3)
    after, far = (
        fit.distance(refine(fit, points, how, victim=0), labels, create_graph=False, victims=(0,) * 3)
        for how in (Refinement(steps=20, stage=0), Refinement(steps=2, stage=0, learning_rate=1e4))
    )
    assert (after < 0.95 * before).all()
    torch.testing.assert_close(far, before)  # the second step is far off: the first point is the best


@pytest.mark.parametrize("average", [False, True])
def test_the_refined_image_is_claimed_with_its_own_distance(average):
    view = toy(examples=2).view()
    plain = replace(ATTACK, refinement=Refinement(), average=average)
    before, after = (one.run(view, rng=RNG)[0] for one in (plain, replace(ATTACK, average=average)))
    searched = ATTACK.objective(view, after.about, rng=RNG)
    distance = {"before": before, "after": after}
    distance = {k: float(searched.loss(c.inputs[None], c.labels[None])) for k, c in distance.items()}
    assert distance["after"] < distance["before"]
    assert not torch.allclose(before.inputs, after.inputs)
    if not average:
        assert -float(after.confidence[0]) == pytest.approx(distance["after"], abs=searched.noise)


def test_victims_are_refined_against_their_own_updates():
    """Together, and one by one."""
    result = toy(examples=1, clients=2)
    views = [result.view(client=k) for k in (0, 1)]
    rngs = [RNG.child(str(k)) for k in (0, 1)]
    with collect_losses() as curve:
        together = ATTACK.run_together(views, rngs=rngs)
    assert len(thinned(curve, 0)) == len(thinned(curve, 1)) == 3  # the latent search's, of every victim
    for view, rng, claims in zip(views, rngs, together, strict=True):
        alone = ATTACK.run(view, rng=rng)[0]
        torch.testing.assert_close(claims[0].inputs, alone.inputs, atol=1e-3, rtol=0)


def test_generators_without_the_stage_are_refused():
    with pytest.raises(Inapplicable, match="more than 5 stages"):
        replace(ATTACK, refinement=Refinement(steps=1, stage=5)).run(toy().view(), rng=RNG)
    with pytest.raises(Inapplicable, match="Unstaged, which has 0"):
        replace(ATTACK, generator=f"{__name__}:unstaged", latent=64).run(toy().view(), rng=RNG)
    with pytest.raises(BadValue, match="learning_rate > 0"):
        Refinement(learning_rate=0.0)
