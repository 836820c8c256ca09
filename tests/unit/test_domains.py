import pytest
import torch

from glasshouse import registry
from glasshouse.data.domains import BoxBlur, Downsample, LowerHalfMask
from glasshouse.errors import BadValue
from glasshouse.rng import Rng

X = torch.rand(3, 2, 12, 8, generator=Rng.root(0).torch())


@pytest.mark.parametrize("change", [BoxBlur(size=4), BoxBlur(size=3), LowerHalfMask(), Downsample(factor=4)])
def test_shape_range_and_input_are_kept(change):
    before = X.clone()
    out = change(X)
    assert out.shape == X.shape
    assert 0 <= out.min() <= out.max() <= 1
    assert torch.equal(X, before)
    torch.testing.assert_close(change(out) if isinstance(change, LowerHalfMask | Downsample) else out, out)


@pytest.mark.parametrize("size", [1, 2, 3, 6])
def test_blur_is_the_mean_of_its_window(size):
    """In the interior; the window of an even size reaches one pixel further up and left."""
    out = BoxBlur(size=size)(X)
    y, x, reach = 6, 4, size // 2
    window = X[:, :, y - reach : y - reach + size, x - reach : x - reach + size]
    torch.testing.assert_close(out[:, :, y, x], window.mean((2, 3)))


def test_mask_hides_the_lower_half_alone():
    out = LowerHalfMask(fill=0.5)(X)
    assert torch.equal(out[:, :, :6], X[:, :, :6])
    assert (out[:, :, 6:] == 0.5).all()


def test_blocks_hold_their_mean():
    out = Downsample(factor=4)(X)
    torch.testing.assert_close(out[0, 0, 5, 6], X[0, 0, 4:8, 4:8].mean())


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: BoxBlur(size=16)(X), "size < 2"),
        (lambda: BoxBlur(size=0)(X), "1 <= size"),
        (lambda: LowerHalfMask(fill=2), "needs  fill"),
        (lambda: Downsample(factor=5)(X), "divides height and width"),
    ],
)
def test_refusals_by_their_words(make, words):
    with pytest.raises(BadValue, match=words):
        make()


@pytest.mark.parametrize("name", registry.names("transforms"))
def test_cards(name):
    assert registry.card("transforms", name).summary
