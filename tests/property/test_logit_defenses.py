"""Defences on logits: what each keeps, what each hides."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from glasshouse import registry
from glasshouse.errors import BadValue, Inapplicable
from glasshouse.federation.defenses.label_only import LabelOnly
from glasshouse.federation.defenses.round_logits import RoundLogits
from glasshouse.federation.defenses.temperature import Temperature
from glasshouse.federation.defenses.top_k import TopK
from glasshouse.rng import Rng
from glasshouse.wire import Update

RNG = Rng.root(0)
values = st.integers(-40, 40).map(lambda i: i / 8)  # exact, with ties
tables = arrays(np.float32, st.tuples(st.integers(1, 6), st.integers(4, 7)), elements=values).map(
    torch.from_numpy
)


def sent(defense, logits: torch.Tensor, *, kind="logits") -> torch.Tensor:
    update = Update(round=0, client=3, kind=kind, tensors={"logits": logits}, examples=9)
    return defense.update(update, rng=RNG).tensors["logits"]


@given(tables, st.integers(0, 3))
def test_rounding_moves_by_half_a_unit_at_most(logits, decimals):
    tensor = sent(RoundLogits(decimals=decimals), logits)
    assert (tensor - logits).abs().max() <= 0.5 * 10**-decimals + 1e-6
    scaled = tensor.double() * 10**decimals
    torch.testing.assert_close(scaled, scaled.round(), rtol=0, atol=1e-2)


@given(tables, st.integers(1, 3))
def test_top_k_keeps_k_probabilities_and_levels_the_others(logits, k):
    tensor = sent(TopK(k=k), logits)
    for row, before in zip(tensor, logits, strict=True):
        first = sorted(range(len(row)), key=lambda c: -float(before[c]))[:k]  # stable: first of equals
        others = [c for c in range(len(row)) if c not in first]
        assert torch.equal(row[first], before[first])
        assert len(set(row[others].tolist())) == 1
        torch.testing.assert_close(row.softmax(0)[first], before.softmax(0)[first], rtol=1e-4, atol=1e-7)


@given(tables, st.floats(0.2, 20))
def test_temperature_divides(logits, value):
    torch.testing.assert_close(sent(Temperature(value=value), logits) * value, logits)


@given(tables, st.floats(0.3, 0.99))
def test_label_only_tells_one_class_at_the_stated_confidence(logits, confidence):
    result = sent(LabelOnly(confidence=confidence), logits)
    first = [max(range(len(row)), key=lambda c, row=row: float(row[c])) for row in logits]
    assert result.argmax(1).tolist() == first
    probabilities = result.softmax(1).gather(1, torch.tensor(first)[:, None])
    torch.testing.assert_close(probabilities, torch.full_like(probabilities, confidence), rtol=1e-4, atol=0)
    torch.testing.assert_close(result.mean(1), torch.zeros(len(result)), rtol=0, atol=1e-5)


@given(tables)
def test_label_only_depends_on_the_label_alone(logits):
    defense = LabelOnly()
    assert torch.equal(sent(defense, logits), sent(defense, logits * 3 + 1))


SETTINGS = {
    "round_logits": {"decimals": 1},
    "top_k": {"k": 2},
    "temperature": {"value": 2.0},
    "label_only": {},
}


@pytest.mark.parametrize("name", sorted(SETTINGS))
def test_refuses_what_is_not_logits(name):
    defense = registry.load("defenses", name)(**SETTINGS[name])
    with pytest.raises(Inapplicable) as caught:
        sent(defense, torch.ones(2, 4), kind="gradient")
    assert caught.value.needs == "an update of kind logits"
    with pytest.raises(BadValue, match=r"got    'logits' of shape \(4,\)"):
        sent(defense, torch.ones(4))


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("round_logits", {"decimals": -1}),
        ("top_k", {"k": 0}),
        ("temperature", {"value": 0.0}),
        ("label_only", {"confidence": 1.0}),
    ],
)
def test_refuses_settings_out_of_range(name, settings):
    with pytest.raises(BadValue, match=f"defense '{name}'"):
        registry.load("defenses", name)(**settings)


def test_refuses_to_keep_every_class_or_to_name_one_below_chance():
    with pytest.raises(BadValue, match="got    k = 4, 4 classes"):
        sent(TopK(k=4), torch.ones(2, 4))
    with pytest.raises(BadValue, match=r"needs  confidence in \(1/4, 1\)"):
        sent(LabelOnly(confidence=0.25), torch.ones(2, 4))
