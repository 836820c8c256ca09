"""Every preset that ships loads, says what it is, and can be shrunk to a smoke test."""

import pytest

from glasshouse.scenario.axes import cells
from glasshouse.scenario.load import load
from glasshouse.scenario.shipped import presets

NAMES = presets()
PAPER = [name for name in NAMES if name.endswith("-paper")]


@pytest.mark.parametrize("name", NAMES)
def test_it_loads_and_introduces_itself(name):
    suite = load(name)
    assert suite.name == name
    assert all(s.summary.endswith((".", "?")) for s in suite.scenarios)
    assert all(s.tuning.source for s in suite.scenarios), "which data were the defaults tuned on?"


@pytest.mark.parametrize("name", NAMES)
def test_other_data_judge_than_those_it_was_tuned_on(name):
    """Another source or split, or (where the data are dealt by the seed) other seeds, stated as such."""
    for scenario in load(name).scenarios:
        tuning, data = scenario.tuning, scenario.data
        same = (tuning.source, tuning.split) == (data.source, data.private_split)
        assert not same or not tuning.split or "other seeds" in tuning.note


@pytest.mark.parametrize("name", PAPER)
def test_a_paper_preset_has_a_reduced_sibling(name):
    stem = name.removesuffix("paper").rstrip("-")
    assert [n for n in NAMES if n.startswith(stem) and n != name]


@pytest.mark.parametrize("name", ["dlg-paper", "inversion-defences-paper"])
def test_a_paper_preset_shrinks_to_one_cell_of_built_in_data(name):
    (scenario,) = load(
        name,
        [
            'data={source="digits", auxiliary=100, heldout=100, public=100}',
            "federation.clients=2", "federation.batch_size=1", "federation.rounds=1",
            "model.pretraining.epochs=1", "defenses=[]", "attacks.*.search.restarts=1", "audit.victims=2",
        ],
    ).scenarios  # fmt: skip
    (cell,) = cells(scenario)
    assert cell.scenario.data.examples == 1
    assert all(a.arguments["search"]["restarts"] == 1 for a in cell.scenario.attacks)


def test_each_data_set_of_pli_paper_has_its_own_settings():
    """Rows that the masks of LFW hide; FaceScrub's weight decay, and its blur of other photos."""
    table = {c.scenario.data.source: c.scenario for c in cells(load("pli-paper").scenarios[0])}
    hidden = {source: s.data.domains.hidden for source, s in table.items()}
    assert hidden == {"folder:lag/adult": (), "folder:lfw/clear": (0.5, 1.0), "folder:facescrub": ()}
    decay = [s.federation.options["weight_decay"] for s in table.values()]
    assert decay == [1e-4, 1e-4, 3e-3]
    assert [bool(s.data.domains.other) for s in table.values()] == [True, True, False]
    assert [a.arguments.get("prior") for a in table["folder:facescrub"].attacks[:2]] == ["cyclegan", "paired"]


def test_the_quickstart_needs_no_download():
    assert {s.data.source for s in load("quickstart").scenarios} == {
        "digits",
        "photos",
        "sentences",
        "clinic",
    }
    assert all(m.system for m in load("quickstart").members)
