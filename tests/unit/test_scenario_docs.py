"""docs/scenario.md lists every key of every table with its true condition and default; its examples parse."""

import re
import tomllib
from pathlib import Path

import pytest
from pydantic import BaseModel

from glasshouse.errors import BadScenario
from glasshouse.outside.schema import freeze
from glasshouse.scenario import spec, suite, table
from glasshouse.scenario.load import load
from glasshouse.scenario.overrides import assign, split_assignment
from glasshouse.scenario.problems import condition
from glasshouse.scenario.spec import Scenario
from glasshouse.scenario.table import Plugin, canonical
from glasshouse.scenario.write import toml
from glasshouse.settings import Optimizer, Training

TEXT = (Path(__file__).parents[2] / "docs" / "scenario.md").read_text()
TABLES = [
    spec.Scenario, spec.Data, spec.Domains, table.Model, table.Pretraining, table.Adversarial,
    spec.Federation, Optimizer, Training, spec.Keep, spec.Behaviour,
    Plugin, spec.Threat, table.Guard, spec.Grants, spec.Audit, table.Epsilon, spec.Policy, spec.Tuning,
    suite.SuiteFile, suite.Entry,
]  # fmt: skip


def documented() -> list[dict[str, tuple[str, str]]]:
    """The tables of the page, in order: key → (needs, default)."""
    tables: list[dict[str, tuple[str, str]]] = []
    for line in TEXT.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split(" | ")]
        if line.startswith("| key"):
            tables.append({})
        elif line.startswith("| `"):
            tables[-1][cells[0].strip(" `")] = (cells[1], cells[2].strip("`"))
    return tables


def true(model: type[BaseModel]) -> dict[str, tuple[str, str]]:
    """What the page must say."""
    schema = model.model_json_schema()
    table = {}
    for key, field in model.model_fields.items():
        default = field.get_default(call_default_factory=True)
        if field.is_required():
            words = "required"
        elif isinstance(default, BaseModel):
            words = "the defaults below"
        elif default is None:
            words = "none"
        else:
            plain = [d.model_dump() for d in default] if key == "metrics" else canonical(default)
            words = toml({"x": [plain, 0]}).strip()[len("x = [") : -len(", 0]")]
        table[key] = (condition(schema["properties"][key], schema), words)
    table.pop("arguments", None)
    return table


@pytest.mark.parametrize("number", range(len(TABLES)), ids=[t.__name__ for t in TABLES])
def test_every_key_with_its_condition_and_default(number):
    page, truth = documented()[number], true(TABLES[number])
    assert page.keys() == truth.keys()
    for key, (needs, default) in truth.items():
        assert page[key] == (needs, default), key


def test_the_page_has_no_other_tables():
    assert len(documented()) == len(TABLES)


def blocks(kind: str) -> list[str]:
    return re.findall(rf"```{kind}\n(.*?)```", TEXT, re.DOTALL)


def test_the_examples_are_scenarios():
    for text in blocks("toml"):
        raw = tomllib.loads(text)
        model = suite.SuiteFile if "scenarios" in raw else Scenario
        model.model_validate(freeze({"name": "example", **raw}))


def test_the_assignments_can_be_made():
    lines = [line.strip("'") for line in re.findall(r"--set (.*)", "".join(blocks("text")))]
    table = {"attacks": [{"name": "dlg"}]}
    for line in lines:
        assign(table, *split_assignment(line))
    assert table == {
        "federation": {"batch_size": 4},
        "attacks": [{"name": "dlg", "search": {"iterations": 50, "restarts": 8}}],
        "axes": {"federation.batch_size": [1, 2]},
    }


def test_the_refusal_shown_is_real(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text = 'name = "clinic"\nfederation = {rouns = 2, clients = 0}\nattacks = ["idlgg"]\n'
    Path("clinic.toml").write_text(text)
    with pytest.raises(BadScenario) as caught:
        load("clinic.toml")
    assert caught.value.subject in TEXT
    for problem in caught.value.problems:  # hints change with what is registered
        assert re.search(
            rf"{re.escape(problem.path)} +needs {re.escape(problem.needs)}; got {problem.got}", TEXT
        )
