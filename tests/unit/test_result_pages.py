"""``make results``: every page of docs/results has its commands and their cost, and what ended is kept."""

import argparse
import importlib
import itertools
import json
import re
import subprocess
from pathlib import Path

import pytest
from benchmarks.guard.__main__ import PARTS
from reproduce import dp_gap, pages, pieces
from reproduce.pieces import Piece

from glasshouse.scenario.load import load

DOCS = Path(__file__).parents[2] / "docs" / "results"


def test_every_page_can_be_run():
    assert sorted(pages.PAGES) == sorted({p.stem for p in DOCS.glob("*.md")} - {"not-reproduced"})


class ParsedError(Exception):
    """The arguments of a benchmark were read."""


def parsed(words, monkeypatch):
    """Check that a benchmark's parser takes these words; nothing of it runs."""
    read = argparse.ArgumentParser.parse_args

    def stop(parser, args=None, namespace=None):
        read(parser, args, namespace)
        raise ParsedError

    first, *rest = words
    module = importlib.import_module(pieces.module_of(first))
    main = PARTS[rest.pop(0)] if first == "benchmarks.guard" else module.main
    with monkeypatch.context() as patched:
        patched.setattr(argparse.ArgumentParser, "parse_args", stop)
        patched.setattr("sys.argv", [first, *rest])
        with pytest.raises(ParsedError):
            main()


@pytest.mark.parametrize("page", pages.PAGES)
def test_commands_are_understood(page, monkeypatch):
    for piece in pages.PAGES[page]:
        first, *rest = piece.command
        if first == "audit":
            changes = [word for option, word in itertools.pairwise(rest) if option == "--set"]
            assert load(rest[0], changes).scenarios
        elif first != "glasshouse":
            parsed(piece.command, monkeypatch)


@pytest.mark.parametrize("page", pages.PAGES)
def test_every_piece_has_a_cost(page):
    assert all(piece.cost > 0 for piece in pages.PAGES[page])


@pytest.mark.parametrize("page", pages.PAGES)
def test_a_page_says_what_its_pieces_cost(page):
    text = " ".join((DOCS / f"{page}.md").read_text(encoding="utf-8").split())
    said = re.search(rf"`make results PAGE={page}` \(([\d,.]+) CPU (seconds|minutes|hours)", text)
    assert said is not None
    seconds = float(said[1].replace(",", "")) * {"seconds": 1, "minutes": 60, "hours": 3600}[said[2]]
    assert seconds == pytest.approx(sum(p.cost for p in pages.PAGES[page] if not p.gpu), rel=0.15)


def test_costs_in_words():
    known, told = Piece(("one_run",), 1200), pieces.about(90, "audit", "dp")
    on_gpu = Piece(("audit", "dlg"), 600, estimated=True, gpu=True)
    assert pieces.price(known) == "about 1,200 CPU seconds"
    assert pieces.price(told) == "about 90 CPU seconds (estimated)"
    assert pieces.price(on_gpu) == "about 600 seconds on a GPU, which it needs (estimated)"
    assert pieces.total([known]) == "about 1,200 CPU seconds"
    assert pieces.total([known, told, on_gpu]) == (
        "about 1,290 CPU seconds, 90 of them estimated, and 600 seconds on a GPU"
    )


def test_a_list_ends_with_the_sum(capsys, monkeypatch):
    monkeypatch.setattr("sys.argv", ["pages", "defence-check", "--list"])
    assert pages.main() == 0
    *lines, last = capsys.readouterr().out.splitlines()
    assert len(lines) == len(pages.PAGES["defence-check"])
    assert last == f"total: {pieces.total(pages.PAGES['defence-check'])}"


def test_a_piece_that_needs_a_gpu_is_left_out_where_there_is_none(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(pieces.shutil, "which", lambda _: None)
    assert pieces.run_pieces([Piece(("audit", "dlg"), 600, gpu=True)], tmp_path) == 0
    assert "left out: there is no GPU" in capsys.readouterr().out
    assert not list(tmp_path.iterdir())


def test_pieces_that_ended_are_kept_and_failed_ones_run_again(tmp_path, monkeypatch):
    codes = iter([0, 70, 0])
    called = []

    def run(words, **_):
        called.append(words)
        return subprocess.CompletedProcess(words, next(codes))

    monkeypatch.setattr(pieces.subprocess, "run", run)
    page = (Piece(("audit", "dp"), 1100), Piece(("one_run",), 7))
    assert pieces.run_pieces(page, tmp_path) == 1
    assert pieces.run_pieces(page, tmp_path) == 0
    assert [words[1] if words[1] == "audit" else words[2] for words in called] == [
        "audit",
        "reproduce.one_run",
        "reproduce.one_run",
    ]
    assert pieces.run_pieces(page, tmp_path) == 0
    assert len(called) == 3


def test_an_audit_says_itself_what_its_workers_took(tmp_path, monkeypatch):
    def run(words, **_):
        out = Path(words[words.index("--out") + 1])
        out.mkdir()
        (out / "manifest.json").write_text(json.dumps({"cpu_seconds": {"attacks": 40.0, "scores": 2.5}}))
        return subprocess.CompletedProcess(words, 0)

    monkeypatch.setattr(pieces.subprocess, "run", run)
    _, facts = pieces.run_piece(Piece(("audit", "dp"), 1100), tmp_path, 1)
    assert facts["cpu_seconds"] == 42
    assert pieces.audit_seconds(tmp_path / "02") is None


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
    assert dp_gap.verdict(gaps) in (DOCS / "dp.md").read_text(encoding="utf-8")
    assert dp_gap.table(gaps) == (DOCS / "dp-gap.csv").read_text(encoding="utf-8")
    assert dp_gap.chart(gaps) == (DOCS / "dp-gap.svg").read_text(encoding="utf-8")


def test_a_cell_that_left_its_page_is_an_error():
    with pytest.raises(LookupError, match=r"dp\.md has no interval"):
        dp_gap.Cell("dp", ("no such row",), "bound", "gone", 0.1, 1.0).measured()
