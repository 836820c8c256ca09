"""The generator: sizes, the cache, resuming, and that it learns where the light is."""

import pytest
import torch

from glasshouse.attacks.inversion.ggl import wgan
from glasshouse.attacks.inversion.ggl.wgan import Critic, Generator, GeneratorTraining, train_generator
from glasshouse.errors import BadValue
from glasshouse.rng import Rng
from glasshouse.wire import Batch

SMALL = GeneratorTraining(width=8, steps=120, batch_size=16, critic_steps=2, learning_rate=2e-3)


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("GLASSHOUSE_CACHE", str(tmp_path))


def left_or_right(count=40):
    """Class 0 is bright on the left, class 1 on the right."""
    draws = Rng.root(1).torch()
    labels = torch.arange(count) % 2
    inputs = 0.2 * torch.rand(count, 1, 8, 8, generator=draws)
    inputs[labels == 0, :, :, :4] += 0.7
    inputs[labels == 1, :, :, 4:] += 0.7
    return Batch(inputs=inputs, labels=labels)


@pytest.mark.parametrize("shape", [(1, 8, 8), (3, 28, 28), (3, 32, 32), (1, 64, 64)])
@pytest.mark.parametrize("classes", [0, 3])
def test_shapes_and_range(shape, classes):
    draws, labels = torch.randn(5, 6, generator=Rng.root(0).torch()), torch.tensor([0, 1, 2, 0, 1])
    with torch.no_grad():
        images = Generator(shape, latent=6, width=4, classes=classes).eval()(draws, labels)
    assert images.shape == (5, *shape)
    assert 0 <= float(images.min()) <= float(images.max()) <= 1
    assert Critic(shape, width=4, classes=classes)(images, labels).shape == (5,)


def test_the_paper_s_sizes():
    """128 → 8,192, then transposed convolutions to 256, 128 and 3 channels: 1.73 million parameters."""
    count = sum(p.numel() for p in Generator((3, 32, 32), latent=128, width=128).parameters())
    assert count == pytest.approx(1.73e6, rel=0.03)


def test_it_learns_what_a_class_looks_like():
    training = GeneratorTraining(
        width=16, conditional=True, steps=400, batch_size=32, critic_steps=2, learning_rate=2e-3
    )
    generator = train_generator(left_or_right(), classes=2, latent=4, training=training)
    latent = torch.randn(200, 4, generator=Rng.root(2).torch())
    for label, bright in ((0, slice(0, 4)), (1, slice(4, 8))):
        images = generator(latent, torch.full((200,), label))
        dark = slice(4, 8) if label == 0 else slice(0, 4)
        assert float(images[..., bright].mean()) > float(images[..., dark].mean()) + 0.3


def test_trained_once_whatever_the_order(monkeypatch):
    data = left_or_right()
    one = train_generator(data, classes=2, latent=4, training=SMALL)
    monkeypatch.setattr(wgan, "_train", lambda *_, **__: pytest.fail("trained again"))
    two = train_generator(data.pick(torch.arange(len(data)).flip(0)), classes=2, latent=4, training=SMALL)
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), two.parameters(), strict=True))
    assert not any(p.requires_grad for p in two.parameters())
    assert not two.training


def test_an_interrupted_training_goes_on_to_the_same_end(monkeypatch, tmp_path):
    whole = train_generator(left_or_right(), classes=2, latent=4, training=SMALL)
    monkeypatch.setenv("GLASSHOUSE_CACHE", str(tmp_path / "other"))
    monkeypatch.setattr(wgan, "_SAVE_EVERY", 50)
    calls, descend = [], wgan._descend

    def stopping(pair, name, loss):
        calls.append(name)
        if calls.count("critic") == 80:
            raise KeyboardInterrupt
        descend(pair, name, loss)

    monkeypatch.setattr(wgan, "_descend", stopping)
    with pytest.raises(KeyboardInterrupt):
        train_generator(left_or_right(), classes=2, latent=4, training=SMALL)
    monkeypatch.setattr(wgan, "_descend", descend)
    rest = train_generator(left_or_right(), classes=2, latent=4, training=SMALL)
    for name, t in whole.state_dict().items():
        torch.testing.assert_close(rest.state_dict()[name], t, rtol=0, atol=0)


def test_refuses():
    with pytest.raises(BadValue, match="at least 2 auxiliary images"):
        train_generator(left_or_right(1), classes=2, latent=4, training=SMALL)
    with pytest.raises(BadValue, match="steps >= 1"):
        GeneratorTraining(steps=0)
