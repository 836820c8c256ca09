"""The annex for a DPIA: one structure, no empty cell, the same content in both files."""

import re
from dataclasses import replace

import pytest
import report_specimen as specimen

from glasshouse.api.run import load
from glasshouse.cli import main
from glasshouse.report.export.annex import ATTACKS, OPEN, UNTESTED, annex
from glasshouse.report.first_screen.leaks import leaks
from glasshouse.report.first_screen.matrix import THREATS, column
from glasshouse.report.readings import ACTS, BYSTANDER, CLIENT, READS, SUMS, read, who_attacks
from glasshouse.results.files import write_result
from glasshouse.results.strength import UpperBound
from glasshouse.results.vocabulary import SEES


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    place = tmp_path_factory.mktemp("annex")
    write_result(specimen.specimen(place), place / "result.json")
    return load(place)


@pytest.fixture(scope="module")
def pages(run):
    return {path.suffix: path.read_text() for path in run.export(annex=True)}


def test_every_combination_is_filled_and_most_are_said_to_be_untested(run, pages):
    matrix = annex(run.result).matrix
    assert [row.threat for row in matrix.rows] == list(THREATS)
    cells = [cell for row in matrix.rows for cell in row.cells]
    assert len(cells) == len(THREATS) * len(matrix.kinds)
    tested = [cell for cell in cells if cell.state != "not tested"]
    assert all((cell.total > 0) == (cell in tested) for cell in cells)
    assert 0 < len(tested) < len(cells)
    assert matrix.whole_coverage == (
        f"{len(tested)} of {len(cells)} combinations of attacker and data were tested; the others were not."
    )
    table = pages[".md"].partition("## 2.")[2].partition("## 3.")[0]
    assert table.count(UNTESTED) == len(cells) - len(tested)


def test_the_last_threat_is_never_tested_here(run):
    assert {cell.state for cell in annex(run.result).matrix.rows[-1].cells} == {"not tested"}


def test_scenarios_stand_in_the_row_of_their_adversary(run):
    card = run.result.threats[0]
    server = replace(card, adversary="a server that only reads", changes=(), sees=(SEES["update"],))
    assert who_attacks(server) == READS
    assert who_attacks(replace(server, changes=("parameter values",))) == ACTS
    assert who_attacks(replace(server, sees=(SEES["aggregate"],))) == SUMS
    assert who_attacks(replace(server, adversary="a client that only reads")) == CLIENT
    assert who_attacks(replace(server, adversary="a bystander that only reads")) == BYSTANDER


def test_both_files_hold_the_same(run, pages):
    content = annex(run.result)
    plain = re.sub(r"\\([^\w\s])", r"\1", pages[".md"])
    for text in (content.matrix.whole_coverage, *content.residual, *(t for _, t in content.policy)):
        assert text in plain
        assert text.replace("'", "&#39;") in pages[".html"]
    assert pages[".md"].count(UNTESTED) == pages[".html"].count(UNTESTED)


def test_guarantees_have_their_unit_and_neighbours_and_the_others_are_counted(run):
    bound = UpperBound(value=0.9, chance=0.5, unit="example", epsilon=8.0, delta=1e-3, steps=10)
    first, *others = (replace(f, bound=None) for f in run.result.findings)
    content = annex(replace(run.result, findings=(replace(first, bound=bound), *others), utility=()))
    (row,) = content.guarantees
    assert (row.epsilon, row.delta, row.utility) == ("8", "0.001", "not measured")
    assert row.unit == "one example; datasets that differ by adding or removing one example"
    assert content.unguarded.startswith("Without a guarantee: ")
    assert content.requirements[0].evidence.startswith("settings with ε = 8")
    assert annex(replace(run.result, findings=tuple(others), utility=())).guarantees == []


def test_every_leak_stands_there_with_what_was_tried(run, pages):
    rows = annex(run.result).leaks
    found = leaks(read(run.result))
    assert len(rows) == len(found) > 0
    for row, leak in zip(rows, found, strict=True):
        assert row[0].startswith(f"{leak.scenario}, ")
        assert leak.title in row[1]
        assert leak.whose in row[1]
        assert row[3] == f"{leak.action} {leak.advice}"
    for text in OPEN:
        assert text in pages[".md"]


def test_inner_descriptions_are_named_in_the_words_of_the_opinion(run):
    metrics = tuple(replace(m, severity="descriptions") for m in run.result.metrics if m.severity == "images")
    readings = read(replace(run.result, metrics=metrics))
    assert {column(r.card.severity, None) for r in readings.every} <= set(ATTACKS)


def test_requirements_without_a_finding_are_not_tested(run):
    empty = replace(run.result, findings=(), utility=())
    assert {one.evidence for one in annex(empty).requirements} == {UNTESTED}
    assert "compliant" not in str(annex(run.result)).lower()


def test_the_command_writes_both(run, capsys):
    with pytest.raises(SystemExit) as stop:
        main(["export", str(run.folder), "--annex"])
    assert stop.value.code == 0
    assert capsys.readouterr().out.split() == [str(run.folder / "annex.html"), str(run.folder / "annex.md")]
