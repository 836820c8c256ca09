"""Every registered name of every group: it has a card, and can be made with its defaults."""

import dataclasses
import inspect

import pytest

from glasshouse import registry
from glasshouse.attacks.base import Claim
from glasshouse.errors import NotInstalled
from glasshouse.registry import Card

NAMES = [(group, name) for group in registry.GROUPS for name in registry.names(group)]
FUNCTIONS = {"datasets", "models"}
"""Groups whose plug-ins are functions; all others are frozen dataclasses."""
METHODS = {
    "attacks": {"run", "needs", "budget"},
    "behaviours": {"deviate"},
    "protocols": {"play", "passes", "traits"},
    "partitioners": {"__call__"},
    "transforms": {"__call__"},
    "properties": {"pairs", "grants"},
    "metrics": {"score", "chance"},
    "defenses": {"describe", "place"},
    "claims": {"silence"},
    "gates": {"run"},
    "declarations": {"read"},
}


def load(group, name):
    return registry.load(group, name)


def required(factory):
    """Arguments without a default."""
    return [n for n, p in registry.arguments(factory).items() if p.default is inspect.Parameter.empty]


def test_every_group_has_plugins():
    assert all(registry.names(group) for group in registry.GROUPS)


@pytest.mark.parametrize(("group", "name"), NAMES)
def test_it_is_described_in_one_line(group, name):
    card = registry.card(group, name)
    assert isinstance(card, Card)
    assert card.summary
    assert "\n" not in card.summary


@pytest.mark.parametrize(("group", "name"), [n for n in NAMES if n[0] not in FUNCTIONS])
def test_it_is_frozen_data_with_the_methods_of_its_group(group, name):
    factory = load(group, name)
    assert dataclasses.is_dataclass(factory)
    assert factory.__dataclass_params__.frozen
    assert METHODS.get(group, set()) <= set(dir(factory))


@pytest.mark.parametrize(("group", "name"), [n for n in NAMES if n[0] not in (*FUNCTIONS, "claims")])
def test_it_is_made_of_what_it_requires_and_its_defaults(group, name):
    factory = load(group, name)
    if required(factory):
        with pytest.raises(TypeError, match="required"):
            factory()
        return
    try:
        result = factory()
    except NotInstalled as error:
        pytest.skip(f"needs an extra: {error.got}")
    assert result == factory()
    assert dataclasses.replace(result) == result


@pytest.mark.parametrize("name", registry.names("claims"))
def test_a_kind_of_claim_is_registered_under_its_kind(name):
    kind = load("claims", name)
    assert issubclass(kind, Claim)
    assert kind.kind == name
    assert registry.arguments(kind)["about"].default is inspect.Parameter.empty
