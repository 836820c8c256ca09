"""Axes become cells; overrides reach what they name, and nothing else."""

import copy
import tomllib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from glasshouse import registry
from glasshouse.audit.simulation.pretraining import ascent_of
from glasshouse.errors import BadScenario
from glasshouse.models import adversarial
from glasshouse.outside.schema import freeze
from glasshouse.scenario.axes import cells, content_hash, expand_axes
from glasshouse.scenario.load import load
from glasshouse.scenario.overrides import PathError, assign, split_assignment
from glasshouse.scenario.spec import Scenario
from glasshouse.scenario.write import resolved_toml, toml


@pytest.fixture(autouse=True)
def factories(monkeypatch):
    """Two attacks: only one takes ``iterations``."""
    known = {"slow": lambda *, iterations=5: None, "exact": lambda *, layer="fc": None}
    monkeypatch.setattr(registry, "load", lambda group, name: known[name])


def override(raw, assignments):
    """A copy with every assignment made."""
    result = copy.deepcopy(raw)
    for text in assignments:
        assign(result, *split_assignment(text))
    return result


def scenario(**tables: object) -> Scenario:
    return Scenario.model_validate(freeze({"name": "toy", **tables}))


def test_axes_multiply_and_the_last_moves_fastest():
    result = cells(
        scenario(
            axes={"federation.batch_size": [1, 4], "defenses": [[], [{"name": "noise", "std": 0.1}, "sign"]]}
        )
    )
    assert [dict(c.axes) for c in result] == [
        {"federation.batch_size": 1, "defenses": "none"},
        {"federation.batch_size": 1, "defenses": "noise std=0.1 + sign"},
        {"federation.batch_size": 4, "defenses": "none"},
        {"federation.batch_size": 4, "defenses": "noise std=0.1 + sign"},
    ]
    assert [c.scenario.federation.batch_size for c in result] == [1, 1, 4, 4]
    assert [len(c.scenario.defenses) for c in result] == [0, 2, 0, 2]
    assert len({c.hash for c in result}) == 4
    assert all(not c.scenario.axes for c in result)


def test_a_labelled_value_and_zipped_axes():
    result = cells(
        scenario(
            axes={"model": [{"label": "tiny", "value": {"name": "mlp", "hidden": 3}}]},
            axes_zipped=[{"federation.clients": [1, 8], "federation.batch_size": [4, 2]}],
        )
    )
    assert [tuple(c.axes.values()) for c in result] == [("tiny", 1, 4), ("tiny", 8, 2)]
    assert result[1].scenario.model.arguments == {"hidden": 3}
    assert (result[1].scenario.federation.clients, result[1].scenario.federation.batch_size) == (8, 2)


def test_without_axes_there_is_one_cell_equal_to_the_scenario():
    (cell,) = cells(scenario())
    assert cell.scenario == scenario()
    assert not cell.axes


@pytest.mark.parametrize(
    ("tables", "words"),
    [
        ({"axes": {"seed": []}}, "a list of at least one value"),
        ({"axes_zipped": [{"seed": [1], "attack_seed": [1, 2]}]}, "lists of one length"),
        ({"axes": {"seed": list(range(50)), "attack_seed": list(range(50))}}, "at most 2000 cells"),
        ({"axes": {"attacks.3.iterations": [1]}}, "entries in 'attacks'"),
        ({"axes": {"..": [1]}}, "a dotted path"),
    ],
)
def test_axes_that_lead_nowhere(tables, words):
    with pytest.raises(PathError) as caught:
        list(expand_axes({"name": "toy", **tables}))
    assert words in caught.value.problem.needs


def test_the_hash_is_of_content_not_of_order_or_words():
    one = scenario(data={"examples": 2, "source": "digits"}, attacks=[{"name": "a", "x": 1, "y": [2]}])
    two = scenario(
        attacks=[{"y": [2], "x": 1, "name": "a"}], data={"source": "digits", "examples": 2}, summary="words"
    )
    assert content_hash(one) == content_hash(two)
    assert content_hash(one) != content_hash(scenario(data={"examples": 3}, attacks=one.attacks))
    assert content_hash(scenario()) == content_hash(scenario())
    assert len(content_hash(one)) == 16


def test_an_axis_over_methods_leaves_each_its_own_step():
    """Cells are written out before the axis moves: what one method takes must not stay with the next."""
    axes = {"model.pretraining.adversarial.method": ["fgsm", "pgd"]}
    items = [ascent_of(c.scenario.model.pretraining) for c in cells(scenario(axes=axes))]
    assert [a.share for a in items] == [adversarial.STEP[m] for m in ("fgsm", "pgd")]


ATTACKS = {"attacks": [{"name": "slow", "label": "A"}, "exact"]}


@pytest.mark.parametrize(
    ("assignment", "expected"),
    [
        ("attacks.0.iterations=3", [{"name": "slow", "label": "A", "iterations": 3}, "exact"]),
        ("attacks[0].iterations = 3", [{"name": "slow", "label": "A", "iterations": 3}, "exact"]),
        ("attacks.A.iterations=3", [{"name": "slow", "label": "A", "iterations": 3}, "exact"]),
        ("attacks.*.iterations=3", [{"name": "slow", "label": "A", "iterations": 3}, "exact"]),
        ('attacks.exact.layer="a=b"', [{"name": "slow", "label": "A"}, {"name": "exact", "layer": "a=b"}]),
        ("attacks.1=slow", [{"name": "slow", "label": "A"}, "slow"]),
    ],
)
def test_entries_are_reached_by_index_name_or_star(assignment, expected):
    assert override(ATTACKS, [assignment])["attacks"] == expected
    assert ATTACKS == {"attacks": [{"name": "slow", "label": "A"}, "exact"]}


@pytest.mark.parametrize(
    ("assignment", "words"),
    [
        ("attacks.2.iterations=3", "needs an index below 2; got 2"),
        ("attacks.slwo.iterations=3", "did you mean"),
        ("attacks.*.speed=3", "needs an entry that takes 'speed'; got none of 2 does"),
        ("seed", "needs path=value; got 'seed'"),
        ("=3", "needs path=value"),
        ("a..=", "a TOML value"),
        ("seed=[1", "needs a TOML value; got [1"),
        ("name.first=3", "below the value 'toy'"),
    ],
)
def test_an_assignment_that_cannot_be_made_says_why(assignment, words):
    with pytest.raises(PathError) as caught:
        override({"name": "toy", **ATTACKS}, [assignment])
    problem = caught.value.problem
    assert words in f"needs {problem.needs}; got {problem.got}; {problem.hint}"


def test_all_bad_assignments_are_reported(monkeypatch):
    monkeypatch.undo()  # the real registry
    with pytest.raises(BadScenario) as caught:
        load("dlg", ["seed", "also"])
    assert len(caught.value.problems) == 2


def test_a_set_path_pins_the_axis():
    raw = {
        "axes": {"federation.batch_size": [1, 4], "defenses": [[], ["sign"]]},
        "federation": {"batch_size": 8},
    }
    assert override(raw, ["federation.batch_size=2"]) == {
        "axes": {"defenses": [[], ["sign"]]},
        "federation": {"batch_size": 2},
    }
    assert "axes" not in override(raw, ["federation.batch_size=2", "defenses=[]"])


def test_zipped_axes_are_pinned_one_by_one():
    raw = {"axes_zipped": [{"seed": [1, 2], "attack_seed": [3, 4]}]}
    assert override(raw, ["seed=7"]) == {"seed": 7, "axes_zipped": [{"attack_seed": [3, 4]}]}
    assert override(raw, ["seed=7", "attack_seed=8"]) == {"seed": 7, "attack_seed": 8}


def test_below_an_axis_every_value_is_reached():
    raw = {"axes": {"attacks": [["slow"], {"label": "two", "value": ["exact", {"name": "slow"}]}, ["exact"]]}}
    assert override(raw, ["attacks.*.iterations=3"])["axes"]["attacks"] == [
        [{"name": "slow", "iterations": 3}],
        {"label": "two", "value": ["exact", {"name": "slow", "iterations": 3}]},
        ["exact"],
    ]


def test_an_axis_itself_can_be_set():
    raw = {"axes": {"federation.batch_size": [1, 4]}}
    assert override(raw, ['axes."federation.batch_size"=[2]'])["axes"] == {"federation.batch_size": [2]}


def test_a_pinned_wildcard_does_not_empty_the_axes():
    raw = {"axes": {"attacks.*.iterations": [1, 2]}, **ATTACKS}
    assert override(raw, ["seed=1"])["axes"] == raw["axes"]
    assign(raw, "attacks.*.iterations", 9)
    assert "axes" not in raw


VALUES = st.recursive(
    st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False) | st.text(max_size=9),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(min_size=1, max_size=5), inner, max_size=3)
    ),
    max_leaves=8,
)


@given(st.dictionaries(st.text(min_size=1, max_size=5), VALUES, max_size=4))
def test_whatever_toml_can_hold_is_read_back(table):
    assert tomllib.loads(toml(table)) == table


@given(st.dictionaries(st.text("abc_", min_size=4, max_size=9), VALUES, max_size=3), st.integers(0, 99))
def test_a_resolved_scenario_is_the_same_scenario(arguments, seed):
    before = scenario(seed=seed, attacks=[{"name": "slow", **arguments}], axes={"seed": [1, 2]})
    assert Scenario.model_validate(freeze(tomllib.loads(resolved_toml(before)))) == before
