"""Every key that an attack of ours gave up leads to one that it takes, and is refused with its name."""

import pytest

from glasshouse import registry
from glasshouse.scenario.plugins import plugin_problems
from glasshouse.scenario.table import Plugin

RENAMED = [
    (name, old, new)
    for name in registry.names("attacks")
    for old, new in registry.card("attacks", name).renamed.items()
]


@pytest.mark.parametrize(("name", "old", "new"), RENAMED)
def test_an_old_key_is_refused_and_the_new_one_named(name, old, new):
    factory = registry.load("attacks", name)
    assert not registry.takes(factory, [old])
    assert registry.takes(factory, new.split("."))
    (problem,) = plugin_problems("attacks", "attacks[0]", Plugin.model_validate({"name": name, old: 1}))
    assert problem.hint == f"it is called {new} now"
