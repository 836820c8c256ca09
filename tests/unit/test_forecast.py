"""A short search foretells a long one: high where the update says much of the images, low under noise."""

import pytest
import torch
from sklearn.datasets import load_digits
from torch import Tensor

from glasshouse.api.forecast import Forecast, forecast_search
from glasshouse.errors import BadValue, Inapplicable
from glasshouse.guard.remedies import gradient_of
from glasshouse.models.build import build
from glasshouse.rng import Rng
from glasshouse.wire import Architecture

MODEL = build(Architecture.of("lenet_sigmoid", (1, 8, 8), 10), rng=Rng.root(0).child("model"))


@pytest.fixture(scope="module")
def digits() -> tuple[Tensor, Tensor]:
    pixels, labels = load_digits(return_X_y=True)
    return torch.tensor(pixels[:2] / 16).float().reshape(-1, 1, 8, 8), torch.tensor(labels[:2])


def test_an_update_that_says_much_leaks_more_than_one_under_noise(digits: tuple[Tensor, Tensor]) -> None:
    update = gradient_of(MODEL, *digits)
    plain = forecast_search(update, MODEL, digits)
    assert len(plain.likeness) == 2
    assert plain.explained > 0.99
    assert plain.leak > 0.2
    size = torch.cat([t.flatten() for t in update.values()]).std()
    generator = torch.Generator().manual_seed(0)
    noisy = {n: t + 3 * size * torch.randn(t.shape, generator=generator) for n, t in update.items()}
    hidden = forecast_search(noisy, MODEL, digits)
    assert hidden.explained < 0.2
    assert hidden.leak < plain.leak / 4


def test_a_factor_changes_nothing_and_a_seed_decides(digits: tuple[Tensor, Tensor]) -> None:
    update = gradient_of(MODEL, *digits)
    small = {name: t * 1e-3 for name, t in update.items()}
    first = forecast_search(update, MODEL, digits, iterations=5)
    assert first == forecast_search(update, MODEL, digits, iterations=5)
    scaled = forecast_search(small, MODEL, digits, iterations=5)
    assert scaled.leak == pytest.approx(first.leak, abs=1e-3)  # signs of float32's rounding decide steps


def test_strangers_are_not_alike(digits: tuple[Tensor, Tensor]) -> None:
    """What is searched for in the update of other images explains less of it."""
    update = gradient_of(MODEL, *digits)
    others = digits[0].flip(2, 3), digits[1]
    assert forecast_search(update, MODEL, others).leak < forecast_search(update, MODEL, digits).leak


def test_summary() -> None:
    assert Forecast(likeness=(0.5, 0.1), explained=0.5, iterations=40).summary == (
        "Predicted leak to a search: 0.15 (after 40 iterations its images correlate by up to 0.50 with "
        "yours, which explain 50% of the update). In our tests this did not reliably say how far a long "
        "search comes: a low number is no safety."
    )


def test_what_cannot_be_searched_is_refused(digits: tuple[Tensor, Tensor]) -> None:
    images, labels = digits
    update = gradient_of(MODEL, images, labels)
    with pytest.raises(BadValue) as caught:
        forecast_search(update, MODEL, (images * 2 - 1, labels))
    assert caught.value.got == "(2, 1, 8, 8) in [-1, 1]"
    with pytest.raises(BadValue, match="nan"):
        forecast_search(update, MODEL, (images * torch.nan, labels))
    with pytest.raises(BadValue, match="B > 0"):
        forecast_search(update, MODEL, (images[:0], labels[:0]))
    with pytest.raises(Inapplicable):
        forecast_search({n: torch.zeros_like(t) for n, t in update.items()}, MODEL, digits)
