"""Figures as plug-ins: a foreign one is shown like ours, a failing one costs itself, cells join by key."""

import json
from collections import Counter
from dataclasses import dataclass, replace
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest

from glasshouse import registry
from glasshouse.attacks.base import Labels, Reconstruction
from glasshouse.audit import guarded
from glasshouse.audit import run as audit_run
from glasshouse.audit.run import audit
from glasshouse.errors import BadValue, DiskFull, Undefined
from glasshouse.figures.arguments import Arguments
from glasshouse.figures.drawing import draw_cell, draw_run, join_exhibits
from glasshouse.figures.federation import FederationFigure
from glasshouse.figures.gallery import Gallery
from glasshouse.registry import Card
from glasshouse.report.html import render
from glasshouse.results.exhibits import Place, check_exhibit, histogram, line, lines, pictures, table
from glasshouse.results.files import read_result
from glasshouse.results.records import Exhibit
from glasshouse.scenario.load import load
from glasshouse.testing.figure_contract import FigureContract, toy_cell

PLACE = Place(scenario="toy", axes={"federation.clients": 2})


@dataclass(frozen=True)
class ClaimedLabels:
    """Of another package: how often each class was claimed, and one chart over all cells."""

    card: ClassVar[Card] = Card(summary="claimed classes")
    reads: ClassVar[frozenset[type]] = frozenset({Labels, Reconstruction})

    def draw(self, cell):
        for attack in cell.attacks:
            counts = Counter()
            for claim in attack.of(Reconstruction):
                counts.update(claim.labels.tolist())
            rows = [[label, counts[label]] for label in sorted(counts)]
            yield table(
                cell.place,
                f"Classes claimed by {attack.label}",
                "By class.",
                columns=["class", "n"],
                rows=rows,
            )

    def collect(self, cell):
        if cell.attacks:
            yield cell.place.scenario, len(cell.attacks)

    def draw_run(self, collected):
        if collected:
            place = Place(scenario=collected[0][0])
            series = [line("n", list(range(len(collected))), [n for _, n in collected])]
            yield lines(place, "Attacks by cell", "", labels=("cell", "n"), series=series)


def failing(error, reads=frozenset({Reconstruction})):
    @dataclass(frozen=True)
    class Failing:
        card: ClassVar[Card] = Card(summary="fails")

        def draw(self, cell):
            yield table(cell.place, "before the error", "", columns=["a"], rows=[[1]])
            raise error

    Failing.reads = reads
    return Failing


@pytest.fixture
def figures(monkeypatch):
    """Register these figures, and no others."""

    def register(**factories):
        monkeypatch.setattr("glasshouse.figures.drawing.names", lambda group: tuple(factories))
        monkeypatch.setattr("glasshouse.figures.drawing.load", lambda group, name: factories[name])

    return register


@pytest.fixture
def cell(tmp_path):
    return toy_cell(tmp_path)


class TestForeignFigure(FigureContract):
    @pytest.fixture
    def figure(self):
        return ClaimedLabels()


class TestGallery(FigureContract):
    @pytest.fixture
    def figure(self):
        return Gallery()


class TestFederationFigure(FigureContract):
    @pytest.fixture
    def figure(self):
        return FederationFigure()


def test_a_gallery_pairs_each_original_with_its_own_reconstruction(cell, tmp_path):
    (exhibit,) = Gallery().draw(cell)
    images = np.load(tmp_path / exhibit.file)["images"]
    np.testing.assert_array_equal(images[:, 0], images[:, 1])
    assert (exhibit.title, exhibit.file) == ("Mine (clients = 2)", "truth/gallery-00-mine.npz")
    assert exhibit.private == ("original", "reconstruction")


def test_a_foreign_figure_stands_on_the_page_like_a_built_in(monkeypatch, tmp_path):
    """Registered, it is drawn, joined over cells and shown, and no line of the core knows it."""
    entry = EntryPoint(name="claimed_labels", value="test_figures:ClaimedLabels", group="glasshouse.figures")
    every = {**registry._entries("figures"), "claimed_labels": (entry,)}
    ask = registry._entries
    monkeypatch.setattr(registry, "_entries", lambda group: every if group == "figures" else ask(group))
    small = [
        'data.source="digits"',
        'attacks=[{name="idlg", search={iterations=2}}]',
        'audit.metrics=["psnr"]',
        "audit.controls=false",
        "audit.victims=2",
        "federation.clients=2",
    ]
    choose = audit_run.choose_executor  # what is registered here alone is drawn here
    monkeypatch.setattr(audit_run, "choose_executor", lambda *a, here, **k: choose(*a, here=True, **k))
    result = audit(load("dlg", small), out=tmp_path / "run", jobs=1)
    titles = [e.title for e in read_result(tmp_path / "run" / "result.json").exhibits]
    assert sum(t.startswith("Classes claimed by idlg") for t in titles) == 1
    assert titles.count("Attacks by cell") == 1
    page = render(replace(result, exhibits=tuple(e for e in result.exhibits if e.kind == "table")), tmp_path)
    assert "Classes claimed by idlg" in page
    log = [json.loads(row) for row in (tmp_path / "run" / "log.jsonl").read_text().splitlines()]
    assert not [row for row in log if row["event"] == "note"]


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (ZeroDivisionError("oops"), "ZeroDivisionError: oops"),
        (Undefined("x", needs="more", got="less", fix="none"), "more"),
    ],
)
def test_a_figure_that_fails_costs_itself_and_is_a_refusal(cell, figures, error, words):
    figures(broken=failing(error), good=ClaimedLabels)
    drawings = draw_cell(cell, guarded.call)
    assert [e.title.split(" (")[0] for e in drawings.exhibits] == [
        "before the error",
        "Classes claimed by Mine",
    ]
    (refusal,) = drawings.refusals
    assert refusal.subject.startswith("figure 'broken' of ")
    assert "toy (clients = 2)" in refusal.subject
    assert words in f"{refusal.needs} {refusal.got}"


def test_a_full_disk_is_no_figure_s_fault(cell, figures):
    figures(broken=failing(DiskFull("x", needs="space", got="none", fix="free some")))
    with pytest.raises(DiskFull):
        draw_cell(cell, guarded.call)


def test_what_is_no_figure_is_named_in_a_refusal(cell, figures):
    figures(odd=dict)
    (refusal,) = draw_cell(cell, guarded.call).refusals
    assert "'draw' or 'collect' with 'draw_run'" in refusal.needs


def test_a_figure_is_asked_only_where_there_is_what_it_reads(cell, figures):
    never = failing(ZeroDivisionError(), reads=frozenset({Labels, "sent"}))
    figures(never=never)
    assert draw_cell(cell, guarded.call).refusals == ()
    figures(once=failing(ZeroDivisionError(), reads=frozenset({Labels, "curve"})))
    assert len(draw_cell(cell, guarded.call).refusals) == 1


def test_a_figure_of_the_run_sees_all_cells_and_may_fail_too(cell, figures):
    figures(mine=ClaimedLabels)
    every = [draw_cell(cell, guarded.call), draw_cell(cell, guarded.call)]
    (chart, *_) = draw_run(every, guarded.call).exhibits
    assert chart.data["series"][0]["y"] == [1, 1]

    class Failing(ClaimedLabels):
        def draw_run(self, collected):
            raise ZeroDivisionError

    figures(mine=Failing)
    drawings = draw_run(every, guarded.call)
    assert drawings.refusals[0].subject == "figure 'mine' of the run"
    assert [e.kind for e in drawings.exhibits] == ["table", "table"]


def test_a_number_that_is_not_finite_never_reaches_the_result(cell, figures):
    class Infinite(ClaimedLabels):
        def draw(self, cell):
            yield lines(cell.place, "t", "c", labels=("x", "y"), series=[line("a", [0], [float("inf")])])

    figures(mine=Infinite)
    drawings = draw_cell(cell, guarded.call)
    assert drawings.exhibits == ()
    assert "finite" in f"{drawings.refusals[0].needs} {drawings.refusals[0].got}"


def chart(*series, join="k", scenario="toy"):
    return lines(Place(scenario=scenario), "t", "c", labels=("x", "y"), series=series, join=join)


def test_lines_are_joined_by_name_and_sorted():
    one = chart(line("a", [4], [0.4], band=([0.3], [0.5])), line("null", [1, 4], [0, 0], null=True))
    other = chart(line("b", [2], [0.1]), line("a", [2], [0.2], band=([0.1], [0.3])))
    (joined,) = join_exhibits([one, other])
    a, null, b = joined.data["series"]
    assert a == {"name": "a", "x": [2, 4], "y": [0.2, 0.4], "low": [0.1, 0.3], "high": [0.3, 0.5]}
    assert (null["x"], null["null"], b["name"]) == ([1, 4], True, "b")


def test_a_band_that_only_some_cells_have_is_dropped():
    (joined,) = join_exhibits([chart(line("a", [1], [1], band=([0], [2]))), chart(line("a", [2], [2]))])
    assert joined.data["series"] == [{"name": "a", "x": [1, 2], "y": [1, 2]}]


def test_a_line_that_stands_beside_another_still_does():
    one = chart(line("a", [1], [1]), line("a: null", [1], [0], of=0))
    other = chart(line("b", [1], [1]), line("b: null", [1], [0], of=0))
    (joined,) = join_exhibits([one, other])
    assert [s.get("of") for s in joined.data["series"]] == [None, 0, None, 2]


def test_only_equal_keys_kinds_and_scenarios_are_joined_whatever_the_title():
    apart = [chart(line("a", [1], [1]), join=""), chart(line("a", [2], [1]), join="")]
    apart += [chart(line("a", [1], [1])), chart(line("a", [1], [1]), scenario="other")]
    apart += [table(PLACE, "t", "c", columns=["a"], rows=[[1]], join="k")]
    assert join_exhibits(apart) == tuple(apart)


def test_rows_and_distributions_are_joined_in_order():
    rows = [table(PLACE, "t", "c", columns=["a"], rows=[[i]], join="k") for i in range(3)]
    (joined,) = join_exhibits(rows)
    assert joined.data["rows"] == [[0], [1], [2]]
    values = [histogram(PLACE, "t", "c", label="x", values={"a": [i]}, join="k") for i in range(3)]
    assert join_exhibits(values)[0].data["series"] == [{"name": "a", "values": [0, 1, 2]}]


@pytest.mark.parametrize(
    ("exhibit", "words"),
    [
        (chart(), "no series"),
        (chart({"name": "a", "x": [1, 2], "y": [1]}), "differ in length"),
        (chart(line("a", [1], [float("nan")])), "not finite"),
        (histogram(PLACE, "t", "c", label="x", values={"a": []}), "without values"),
        (table(PLACE, "t", "c", columns=["a"], rows=[[1, 2]]), "more or fewer cells"),
        (Exhibit(kind="pictures", scenario="s", title="t", caption=""), "no file"),
        (Exhibit(kind="pie", scenario="s", title="t", caption=""), "kind 'pie'"),
    ],
)
def test_an_exhibit_that_could_not_be_drawn_is_refused(exhibit, words):
    with pytest.raises(BadValue, match=words):
        check_exhibit(exhibit, subject="figure 'mine'")


def test_a_heading_names_the_axes_once():
    place = Place(scenario="s", axes={"federation.clients": 4, "defenses.0.std": 0.1})
    assert place.heading("Accuracy") == "Accuracy (clients = 4, std = 0.1)"
    assert place.without("defenses.0.std").heading("Accuracy") == "Accuracy (clients = 4)"
    assert Place(scenario="s").heading("Accuracy") == "Accuracy"


def test_pictures_are_filed_below_the_run(tmp_path):
    columns = {"a": np.zeros((2, 4, 4, 1), dtype=np.float32)}
    inside, outside = (Place(scenario="s", run=run) for run in (tmp_path, tmp_path / "run"))
    exhibit = pictures(inside, "t", "c", columns=columns, file=tmp_path / "x.npz", private=())
    assert (exhibit.file, exhibit.data["rows"]) == ("x.npz", ["1", "2"])
    with pytest.raises(ValueError, match="subpath"):
        pictures(outside, "t", "c", columns=columns, file=tmp_path / "x.npz", private=())


def test_every_registered_figure_says_what_it_reads():
    for name in registry.names("figures"):
        figure = registry.load("figures", name)()
        assert registry.card("figures", name).summary
        assert figure.reads


def test_the_audit_names_no_figure():
    """It asks for all that are registered."""
    source = Path(registry.__file__).parent / "audit"
    text = "\n".join(path.read_text() for path in source.rglob("*.py"))
    entries = [entry for every in registry._entries("figures").values() for entry in every]
    modules = {entry.value.split(":")[0] for entry in entries}
    assert Arguments.__module__ in modules
    assert not [module for module in modules if module in text]
