"""``make results``: every page of docs/results has its commands, they exist, and what ended is kept."""

import importlib.util
import subprocess
from pathlib import Path

import pytest
from benchmarks import dp_gap, pages

from glasshouse.scenario.shipped import presets

DOCS = Path(__file__).parents[2] / "docs" / "results"


def test_every_page_can_be_run():
    assert sorted(pages.PAGES) == sorted(p.stem for p in DOCS.glob("*.md"))


@pytest.mark.parametrize("page", pages.PAGES)
def test_commands_exist(page):
    for piece in pages.PAGES[page]:
        first, *rest = piece.command
        if first == "audit":
            assert rest[0] in presets()
        else:
            assert importlib.util.find_spec(f"benchmarks.{first}")


def test_pieces_that_ended_are_kept_and_failed_ones_run_again(tmp_path, monkeypatch):
    codes = iter([0, 70, 0])
    called = []

    def run(words, **_):
        called.append(words)
        return subprocess.CompletedProcess(words, next(codes))

    monkeypatch.setattr(pages.subprocess, "run", run)
    monkeypatch.setitem(pages.PAGES, "dp", (pages.Piece(("audit", "dp")), pages.Piece(("one_run",), 7)))
    assert pages.run_page("dp", tmp_path) == 1
    assert pages.run_page("dp", tmp_path) == 0
    assert [words[1] if words[1] == "audit" else words[2] for words in called] == [
        "audit",
        "benchmarks.one_run",
        "benchmarks.one_run",
    ]
    assert pages.run_page("dp", tmp_path) == 0
    assert len(called) == 3


@pytest.fixture(scope="module")
def gaps():
    return dp_gap.gaps()


def test_what_was_measured_under_a_guarantee_is_below_its_bound(gaps):
    for cell, (value, low, high), _ in gaps:
        assert 0 <= low <= value <= high <= 1, cell.name
    assert len(dp_gap.judged(gaps)) >= 13
    assert dp_gap.above(dp_gap.judged(gaps)) == []


def test_a_figure_above_its_bound_is_named(gaps):
    cell, (_, low, high), bound = dp_gap.judged(gaps)[0]
    beyond = (cell, (1.0, bound + 1e-6, 1.0), bound)
    assert dp_gap.above([beyond, (cell, (low, low, high), 1.0)]) == [cell.name]
    assert dp_gap.verdict([beyond, (cell, (low, low, high), 1.0)]) == "1 of 1 above, 1 further bounds are 1"


def test_the_page_of_bounds_shows_what_is_computed(gaps):
    page = (DOCS / "dp.md").read_text(encoding="utf-8")
    assert f"\n\n{dp_gap.table(gaps)}\n\n" in page
    assert dp_gap.verdict(gaps) in page
    assert dp_gap.chart(gaps) == (DOCS / "dp-gap.svg").read_text(encoding="utf-8")


def test_a_cell_that_left_its_page_is_an_error():
    with pytest.raises(LookupError, match=r"dp\.md has no interval"):
        dp_gap.Cell("dp", ("no such row",), "bound", "gone", 0.1, 1.0).measured()
