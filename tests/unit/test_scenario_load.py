"""A scenario file: what it loads to, and every mistake named at once, with its path and a way out."""

import dataclasses
import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from glasshouse import registry
from glasshouse.errors import BadFile, BadScenario, BadValue, UnknownName
from glasshouse.interfaces import Traits
from glasshouse.outside.schema import freeze
from glasshouse.scenario import shipped
from glasshouse.scenario.axes import cells, plain
from glasshouse.scenario.check import check_raw
from glasshouse.scenario.load import from_dict, load, read_resolved, write_resolved
from glasshouse.scenario.spec import Scenario
from glasshouse.scenario.write import resolved_toml


@dataclass(frozen=True, kw_only=True)
class Needs:
    sees: frozenset[str] = frozenset({"update"})
    changes: frozenset[str] = frozenset({"parameters"})
    grants: frozenset[str] = frozenset({"labels"})
    protocols: frozenset[str] = frozenset({"toy_protocol"})


@dataclass(frozen=True, kw_only=True)
class ToyAttack:
    iterations: int = 10
    weight: float = 0.5
    order: Literal["up", "down"] = "up"
    steps: tuple[int, ...] = ()
    needs: Any = dataclasses.field(default_factory=Needs)

    def __post_init__(self) -> None:
        if self.iterations < 1:
            raise BadValue("attack 'toy'", needs="iterations >= 1", got=str(self.iterations), fix="give more")


@dataclass(frozen=True, kw_only=True)
class ToyNoise:
    std: float


class ToyMetric:
    requires = frozenset()


class ToyProtocol:
    traits = Traits(sends="delta", allows=("delta", "parameters", "gradient"))


def toy_model(input_shape: Any, classes: int, *, width: int = 8) -> None:
    """Never built here."""


TOYS: dict[tuple[str, str], Callable[..., Any]] = {
    ("attacks", "toy"): ToyAttack,
    ("defenses", "noise"): ToyNoise,
    ("models", "toy_model"): toy_model,
    ("metrics", "psnr"): ToyMetric,
    ("protocols", "toy_protocol"): ToyProtocol,
    ("datasets", "digits"): object,
    ("partitioners", "iid"): object,
}


@pytest.fixture(autouse=True)
def toys(monkeypatch: pytest.MonkeyPatch) -> None:
    """A registry of our own: these tests are about files, not about which plug-ins there are."""

    def find(group: str, name: str) -> Callable[..., Any]:
        known = tuple(n for g, n in TOYS if g == group)
        if (group, name) not in TOYS:
            raise UnknownName(
                group,
                needs=f"a registered name of {group}",
                got=name,
                fix=registry.nearest_names(name, known),
            )
        return TOYS[group, name]

    monkeypatch.setattr(registry, "load", find)
    monkeypatch.setattr(registry, "names", lambda group: tuple(n for g, n in TOYS if g == group))


GOOD = """
name = "toy"
[data]
examples = 4
[model]
name = "toy_model"
width = 16
[federation]
protocol = "toy_protocol"
clients = 5
batch_size = 2
[[defenses]]
name = "noise"
std = 1
[[attacks]]
name = "toy"
steps = [1, 2]
[audit]
metrics = ["psnr"]
"""


def written(path: Path, text: str = GOOD) -> str:
    (path / "s.toml").write_text(text)
    return str(path / "s.toml")


def problems(path: Path, text: str, *sets: str) -> dict[str, str]:
    """path → "needs ...; got ...; hint" of every problem."""
    with pytest.raises(BadScenario) as caught:
        load(written(path, text), sets)
    return {p.path: f"needs {p.needs}; got {p.got}; {p.hint}" for p in caught.value.problems}


def test_a_single_scenario_is_a_suite_of_one(tmp_path):
    suite = load(written(tmp_path))
    (scenario,) = suite.scenarios
    assert suite.name == scenario.name == "toy"
    assert suite.given == GOOD
    assert scenario.model.arguments == {"width": 16}
    assert scenario.attacks[0].arguments == {"steps": (1, 2)}
    assert scenario.audit.metrics[0].name == "psnr"


def test_frozen(tmp_path):
    (scenario,) = load(written(tmp_path)).scenarios
    with pytest.raises(ValueError, match="frozen"):
        scenario.seed = 3


def test_every_problem_at_once(tmp_path):
    text = """
    name = "bad name"
    sed = 3
    [data]
    deal = "images"
    partition = "iidd"
    [federation]
    rouns = 3
    clients = 0
    cohort = 1.5
    learning_rate = nan
    secure_sum = 1
    protocol = "toy_protocl"
    keep = {rounds = "some"}
    behaviours = [{name = "flip", clients = 0}]
    [model]
    name = "toy_model"
    widht = 3
    [[attacks]]
    name = "tyo"
    [[attacks]]
    name = "toy"
    label = "second"
    order = "upp"
    iterations = 2.5
    weight = inf
    steps = ["one"]
    speed = 3
    [[defenses]]
    name = "noise"
    [audit]
    metrics = ["psrn"]
    """
    table = problems(tmp_path, text)
    assert table["name"] == """needs text of letters, digits, '.', '_' and '-'; got "bad name"; """
    assert table["sed"] == "needs a known key; got 'sed'; did you mean seed?"
    assert table["data.deal"] == 'needs one of image, label; got "images"; did you mean image?'
    assert table["data.partition"] == "needs a registered name of partitioners; got iidd; did you mean iid?"
    assert table["federation.rouns"].startswith("needs a known key; got 'rouns'; did you mean rounds")
    assert table["federation.clients"] == "needs an int >= 1; got 0; "
    assert table["federation.cohort"] == "needs a number > 0 and <= 1; got 1.5; "
    assert table["federation.learning_rate"] == "needs a finite number; got nan; "
    assert table["federation.secure_sum"] == "needs true or false; got 1; "
    assert table["federation.protocol"].endswith("did you mean toy_protocol?")
    assert table["federation.keep.rounds"].startswith('needs "all", "attacked", or a list')
    assert table["federation.behaviours[0].clients"].startswith("needs a number of clients >= 1")
    assert (
        table["model.widht"] == "needs an argument of 'toy_model'; got 'widht'; did you mean width, weights?"
    )
    assert table["attacks[0].name"] == "needs a registered name of attacks; got tyo; did you mean toy?"
    assert table["attacks[1].order"] == 'needs one of up, down; got "upp"; did you mean up?'
    assert table["attacks[1].iterations"] == "needs an int; got 2.5; "
    assert table["attacks[1].weight"] == "needs finite numbers; got inf; "
    assert table["attacks[1].steps"] == 'needs a list, each an int; got ["one"]; '
    assert table["attacks[1].speed"].startswith("needs an argument of 'toy'; got 'speed'")
    assert table["defenses[0].std"] == "needs a value ('noise' has no default for it); got nothing; "
    assert table["audit.metrics[0].name"].endswith("did you mean psnr?")
    assert table["federation.behaviours[0].name"].startswith("needs a registered name of behaviours")
    assert len(table) == 22


def test_a_plugins_own_refusal_becomes_a_problem(tmp_path):
    assert problems(tmp_path, GOOD, "attacks.0.iterations=0") == {
        "attacks[0]": "needs iterations >= 1; got 0; give more"
    }


@pytest.mark.parametrize(
    ("sets", "path", "words"),
    [
        (["federation.batch_size=5"], "federation.batch_size", "at most data.examples = 4"),
        (["federation.cohort=0.05"], "federation.cohort", "cohort >= 0.1; got 0.05"),
        (["data.alpha=1.0"], "data.alpha", 'got 1.0 with "iid"'),
        (["data.partition=didi"], "data.partition", "a registered name of partitioners"),
        (["model.pretraining.epochs=1"], "model.pretraining.epochs", "data.public > 0"),
        (["threat.role=client"], "threat.client", "an id from 0 to 4; got nothing"),
        (["threat.client=1"], "threat.client", 'nothing unless role = "client"'),
        (["threat.role=bystander", 'threat.sees=["update"]'], "threat.role", 'sees = ["broadcast"]'),
        (["federation.secure_sum=true", 'threat.sees=["update"]'], "threat.sees", "did you mean aggregate?"),
        (["audit.rounds=[0, 1]"], "audit.rounds[1]", "a round from -1 to 0; got 1"),
        (["federation.keep.rounds=[2]"], "federation.keep.rounds[0]", "a round from 0 to 0; got 2"),
        (["policy.max_gain.psnt=1.0"], "policy.max_gain.psnt", "did you mean psnr?"),
        (["policy.min_accuracy=0.5", "audit.utility=false"], "policy.min_accuracy", "audit.utility = true"),
        (["data.heldout=0"], "data.heldout", "images to measure utility on"),
        (["attacks=[]"], "attacks", "at least one attack"),
        (['attacks=["toy", "toy"]'], "attacks", "2 called 'toy'; give each a label"),
        (["audit.seeds=[1, 1]"], "audit.seeds", "different seeds"),
    ],
)  # fmt: skip
def test_rules_across_keys(tmp_path, sets, path, words):
    table = problems(tmp_path, GOOD, *sets)
    assert list(table) == [path]
    assert words in table[path]


@pytest.mark.parametrize("value", ["2026-01-01", "[1, 07:30:00]", "{a = 2026-01-01}"])
def test_dates_are_no_arguments(tmp_path, value):
    assert "not steps = " in problems(tmp_path, GOOD, f"attacks.0.steps={value}")["attacks[0].arguments"]
    table = problems(tmp_path, GOOD, f'axes={{"attacks.0.steps" = [{value}]}}')
    assert "not steps = " in table["attacks[0].arguments"]


def test_a_plugin_that_takes_anything_still_gets_finite_numbers(tmp_path, monkeypatch):
    monkeypatch.setitem(TOYS, ("defenses", "open"), lambda **settings: settings)
    assert load(written(tmp_path), ['defenses=[{name="open", x=[1.5]}]']).scenarios[0].defenses
    table = problems(tmp_path, GOOD, 'defenses=[{name="open", x=[nan]}]')
    assert table == {"defenses[0].x": "needs finite numbers; got [nan]; "}


def test_a_problem_of_some_cells_is_said_once(tmp_path):
    axes = 'axes={"federation.batch_size"=[2, 8], "seed"=[0, 1], defenses=[[], ["noise"]]}'
    table = problems(tmp_path, GOOD, axes)
    assert table == {
        "federation.batch_size": "needs at most data.examples = 4, a client's whole data; got 8 "
        "(in 4 of 8 cells: federation.batch_size = 8); ",
        "defenses[0].std": "needs a value ('noise' has no default for it); got nothing "
        "(in 4 of 8 cells: defenses = noise); ",
    }
    table = problems(tmp_path, GOOD, "axes={seed=[0, 1]}", "data.alpha=1.0")
    assert table["data.alpha"].endswith('got 1.0 with "iid"; ')


def test_misbehaving_clients_are_counted(tmp_path, monkeypatch):
    monkeypatch.setitem(TOYS, ("behaviours", "flip"), object)
    table = problems(
        tmp_path, GOOD, 'federation.behaviours=[{name="flip", clients=[0, 7]}, {name="flip", clients=4}]'
    )
    assert table["federation.behaviours[0].clients"] == "needs different ids from 0 to 4; got [0, 7]; "
    assert table["federation.behaviours"] == "needs at most 5 misbehaving clients in all; got 6; "


def test_not_toml_names_line_and_column(tmp_path):
    with pytest.raises(BadFile, match=r"line 2, column 8"):
        load(written(tmp_path, "name = 'a'\nseed = ?\n"))


def test_a_missing_file_and_an_unknown_preset(tmp_path):
    with pytest.raises(BadFile, match="no such file"):
        load(str(tmp_path / "none.toml"))
    with pytest.raises(UnknownName, match="did you mean fedavg-steps"):
        load("fedavg-stpes")


def test_a_suite_loads_presets_files_and_overrides(tmp_path):
    written(tmp_path)
    (tmp_path / "suite.toml").write_text(
        'name = "both"\nscenarios = ["./s.toml", '
        '{use = "s.toml", set = {name = "b", "attacks.*.iterations" = 3}, system = "x"}]'
    )
    suite = load(str(tmp_path / "suite.toml"), ["seed=4", "scenarios.b.seed=5"])
    assert [(m.scenario.name, m.scenario.seed, m.system) for m in suite.members] == [
        ("toy", 4, ""),
        ("b", 5, "x"),
    ]
    assert suite.scenarios[1].attacks[0].arguments["iterations"] == 3


def test_problems_of_a_suite_say_which_scenario(tmp_path):
    written(tmp_path)
    (tmp_path / "suite.toml").write_text(
        'name = "both"\nscenarios = ["s.toml", {use = "s.toml", set = {seed = -1}}, "gone.toml"]'
    )
    with pytest.raises(BadScenario) as caught:
        load(str(tmp_path / "suite.toml"))
    assert [p.path for p in caught.value.problems] == ["scenarios[2].use", "scenarios[1] (s.toml) seed"]


def test_two_scenarios_of_one_name_are_refused(tmp_path):
    written(tmp_path)
    (tmp_path / "suite.toml").write_text('name = "both"\nscenarios = ["s.toml", "s.toml"]')
    with pytest.raises(BadScenario, match="different names"):
        load(str(tmp_path / "suite.toml"))


def test_resolved_round_trips(tmp_path):
    (scenario,) = load(
        written(tmp_path),
        ['axes={"federation.batch_size"=[1, 2], defenses=[[], ["noise"]]}', "axes.defenses=[[]]"],
    ).scenarios
    write_resolved(scenario, tmp_path / "deep" / "resolved.toml")
    again = read_resolved(tmp_path / "deep" / "resolved.toml")
    assert again == scenario
    assert [c.hash for c in cells(again)] == [c.hash for c in cells(scenario)]
    assert load(str(tmp_path / "deep" / "resolved.toml")).scenarios == (scenario,)


def test_plain_data_is_checked_too():
    with pytest.raises(BadScenario, match="attacks"):
        from_dict({"name": "empty", "model": {"name": "toy_model"}})


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4) | st.dates(),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text("abname", max_size=4), inner, max_size=3)
    ),
    max_leaves=6,
)


def paths(node: Any, above: str = "") -> list[str]:
    """Every path in a raw scenario."""
    children = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    result = [p for key, child in children for p in paths(child, f"{above}.{key}" if above else str(key))]
    return result + ([above] if above else [])


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data(), value=ANYTHING)
def test_whatever_stands_anywhere_it_loads_or_is_refused_in_our_words(data, value):
    raw = plain(from_dict(tomllib.loads(GOOD)))
    raw |= {
        "axes": {"seed": [1]},
        "axes_zipped": [{"attack_seed": [1]}],
        "policy": {"max_gain": {"psnr": 1.0}},
    }
    *above, key = data.draw(st.sampled_from(paths(raw))).split(".")
    node: Any = raw
    for part in above:
        node = node[int(part)] if isinstance(node, list) else node[part]
    node[int(key) if isinstance(node, list) else key] = value
    scenario, result = check_raw(raw)
    assert (scenario is None) == bool(result)
    assert all(p.path and p.needs and p.got for p in result)
    if scenario is not None:
        assert load_resolved(scenario) == scenario


def load_resolved(scenario: Scenario) -> Scenario:
    return Scenario.model_validate(freeze(tomllib.loads(resolved_toml(scenario))))


def test_the_model_may_be_the_users_own(tmp_path, monkeypatch):
    (tmp_path / "mine.py").write_text("def net(shape, classes, *, depth): ...\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert load(written(tmp_path), ['model={name="mine:net", depth=2}']).scenarios[0].model.arguments == {
        "depth": 2
    }
    assert problems(tmp_path, GOOD, 'model={name="mine:net"}')["model.depth"].startswith("needs a value")
    assert "cannot" not in problems(tmp_path, GOOD, "model={name='mine:nte'}")["model.name"]


def test_presets_are_listed():
    assert "dlg" in shipped.presets()
