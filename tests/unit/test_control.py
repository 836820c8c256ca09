"""Controls from end to end: the audited settings count, and so does the plug-in's own code."""

import sys

import pytest

from glasshouse import registry
from glasshouse.audit.provenance import sources
from glasshouse.audit.run import audit
from glasshouse.audit.scoring.judging.control import (
    ControlTask,
    easy_scenario,
    judge_control,
    run_control,
)
from glasshouse.audit.simulation.build import build
from glasshouse.cache import digest
from glasshouse.errors import BadValue
from glasshouse.scenario.axes import cells
from glasshouse.scenario.load import from_dict, load
from glasshouse.scenario.suite import Member, Suite
from glasshouse.scenario.table import Plugin

RAW = {
    "name": "controls",
    "data": {"auxiliary": 60, "heldout": 60, "examples": 3},
    "model": {"name": "mlp"},
    "federation": {"clients": 4, "batch_size": 1},
    "defenses": [{"name": "gaussian_noise", "std": 10.0}],
    "attacks": [
        {"name": "linear_input"},
        {"name": "inverting_gradients", "search": {"iterations": 1, "restarts": 1}},
    ],
    "audit": {"metrics": ["psnr"], "distractors": 19, "utility": False},
}

PLUGIN = """
from dataclasses import dataclass
from typing import ClassVar
from glasshouse.attacks.inversion.linear_input import LinearInput
from glasshouse.attacks.base import Needs, Reconstruction
from glasshouse.registry import Card
import dataclasses

@dataclass(frozen=True, kw_only=True)
class Foreign:
    card: ClassVar[Card] = Card(summary="the closed form, in a package of its own", control={control})
    needs: ClassVar[Needs] = LinearInput.needs
    budget: ClassVar[None] = None

    def run(self, view, *, rng):
        claims = LinearInput().run(view, rng=rng)
        return tuple(dataclasses.replace(c, inputs={inputs}) for c in claims)
"""


def control(task: ControlTask):
    run_control(task)
    return judge_control(task)[1]


@pytest.fixture
def plugin(tmp_path, monkeypatch):
    """Writes the foreign package anew: its source, and what its card says of the control."""
    info = tmp_path / "foreign_attack-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: foreign-attack\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[glasshouse.attacks]\nforeign = foreign_attack:Foreign\n")
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])

    def write(inputs: str = "c.inputs", control: str = "{'scenario': {'model': {'name': 'mlp'}}}") -> None:
        (tmp_path / "foreign_attack.py").write_text(
            PLUGIN.replace("{inputs}", inputs).replace("{control}", control)
        )
        sys.modules.pop("foreign_attack", None)
        registry.look_again()
        sources._digest.cache_clear()

    yield write
    sys.modules.pop("foreign_attack", None)
    registry.look_again()


def task(folder, attack: str, **arguments) -> ControlTask:
    return ControlTask(
        key="k", plugin=Plugin.model_validate({"name": attack, **arguments}), folder=str(folder)
    )


def test_an_audit_believes_only_attacks_that_pass_their_control(tmp_path):
    suite = Suite(name="controls", members=(Member(scenario=from_dict(RAW)),), given="controls")
    result = audit(suite, out=tmp_path / "run", jobs=1)
    findings = {f.attack: f for f in result.findings}
    exact, weak = findings["linear_input"], findings["inverting_gradients"]
    assert exact.control is not None
    assert exact.control.passed
    assert exact.control.positive_low > 20
    assert exact.verdict != "no power"
    assert weak.control is not None
    assert not weak.control.passed  # one iteration is what was audited: it fails in the easy setting, too
    assert weak.verdict == "no power"


def test_a_plugin_that_is_broken_after_it_passed_fails_its_control(tmp_path, plugin):
    plugin()
    before = control(task(tmp_path / "one", "foreign"))
    plugin(inputs="c.inputs * 0 + 0.5")
    after = control(task(tmp_path / "two", "foreign"))
    assert before.passed
    assert before.n == 6
    assert not after.passed


def test_a_control_is_taken_from_the_cache_while_no_source_changes(tmp_path, plugin):
    plugin()
    first = control(task(tmp_path / "one", "foreign"))
    again = task(tmp_path / "two", "foreign")
    run_control(again)
    assert [path.name for path in (tmp_path / "two").iterdir()] == ["control.json"]  # nothing was simulated
    assert judge_control(again)[1] == first


def test_a_card_cannot_replace_audited_settings(tmp_path, plugin):
    plugin(control="{'arguments': {'iterations': 150}}")
    with pytest.raises(BadValue, match="audited settings"):
        control(task(tmp_path / "one", "foreign"))


def test_an_attack_without_an_easy_setting_has_no_control(tmp_path, plugin):
    plugin(control="{}")
    assert control(task(tmp_path / "one", "foreign")) is None


def test_settings_that_have_no_meaning_in_the_easy_setting_are_no_power(tmp_path, plugin):
    plugin(control="{'scenario': {'model': {'name': 'lenet_sigmoid'}}}")  # no linear first layer to invert
    assert not control(task(tmp_path / "one", "foreign")).passed


def test_every_source_file_of_ours_counts(monkeypatch):
    counted = {path.name for path in sources._files("glasshouse")}
    assert {"linear_input.py", "score.py", "interval.py", "control.py"} <= counted
    before = sources.sources_digest("attacks", "dlg")
    monkeypatch.setattr(sources, "_digest", lambda package: "other")
    assert sources.sources_digest("attacks", "dlg") != before


@pytest.mark.parametrize("preset", ["quickstart-ggl", "quickstart-secure-sum"])
def test_a_quickstart_and_its_control_train_on_the_same_auxiliary_images(preset):
    """So that what an attack trains on them is trained once."""
    scenario = cells(load(preset).scenarios[0])[0].scenario
    (attack,) = scenario.attacks
    audited, easy = build(scenario, seed=scenario.seed), easy_scenario(attack)
    controlled = build(easy, seed=easy.seed)
    ours, theirs = (sorted(digest(x) for x in one.auxiliary.inputs) for one in (audited, controlled))
    assert ours == theirs
    assert audited.setting.terms.architecture.arguments == controlled.setting.terms.architecture.arguments
