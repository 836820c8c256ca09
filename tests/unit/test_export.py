"""glasshouse export: the same numbers as files, figures that stand alone, private pictures blurred."""

import csv
import re
from dataclasses import replace
from xml.etree import ElementTree as ET

import numpy as np
import pytest
import report_specimen as specimen
from PIL import Image

from glasshouse.api.run import load
from glasshouse.cli import main
from glasshouse.errors import BadValue
from glasshouse.report.export.tables import latex
from glasshouse.report.markdown import markdown
from glasshouse.results.files import write_result
from glasshouse.results.rows import Rows, flat
from glasshouse.results.strength import Search

SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    place = tmp_path_factory.mktemp("run")
    write_result(specimen.specimen(place), place / "result.json")
    return load(place)


@pytest.fixture(scope="module")
def figures(run, tmp_path_factory):
    return run.export(figures=tmp_path_factory.mktemp("figures"))


def test_csv_holds_every_finding_with_its_numbers(run, tmp_path):
    paths = run.export(csv=tmp_path)
    with (tmp_path / "findings.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [float(r["value"]) for r in rows] == [f.value for f in run.findings]
    assert [r["defenses"] for r in rows] == [" + ".join(f.defenses) for f in run.findings]
    assert {path.stem for path in paths} >= {"findings", "utility"}


def test_the_columns_of_a_frame_are_those_of_the_file(run, tmp_path):
    run.export(csv=tmp_path)
    head = (tmp_path / "findings.csv").read_text().splitlines()[0].split(",")
    assert head == list(run.findings.to_frame().columns)


def test_latex_has_a_row_for_every_setting_and_attack(run, tmp_path):
    paths = run.export(latex=tmp_path)
    name = run.findings[0].scenario
    text = (tmp_path / f"{name}-findings.tex").read_text()
    rows = {(str(f.axes), f.attack) for f in run.findings.where(scenario=name)}
    assert text.count(r"\\") == len(rows) + 1
    columns = len(re.search(r"\{(l+)\}", text)[1])
    assert {line.count(" & ") for line in text.splitlines() if line.endswith(r"\\")} == {columns - 1}
    assert all(path.suffix == ".tex" for path in paths)
    assert not re.search(r"(?<!\\)[_%#]|−", text), "what LaTeX would choke on is escaped"


def test_a_leak_is_bold_and_no_power_is_no_number(run, tmp_path):
    run.export(latex=tmp_path)
    text = "".join(path.read_text() for path in tmp_path.glob("*-findings.tex"))
    verdicts = {f.verdict for f in run.findings}
    assert (r"\textbf{" in text) == ("leaks" in verdicts)
    assert ("no power" in text) == ("no power" in verdicts)


@pytest.mark.parametrize(
    ("words", "tex"),
    [
        ("a_b & 5 %", r"a\_b \& 5 \%"),
        ("−1 ≤ σ", r"$-$1 $\leq$ $\sigma$"),
        ("\\x{}", r"\textbackslash{}x\{\}"),
    ],
)
def test_words_are_escaped(words, tex):
    assert latex(words) == tex


def test_every_chart_is_an_svg_that_stands_by_itself(figures):
    charts = [path for path in figures if path.suffix == ".svg"]
    assert len(charts) >= 6
    assert len({path.name for path in figures}) == len(figures)
    for path in charts:
        root = ET.parse(path).getroot()
        assert root.tag == f"{SVG}svg"
        assert float(root.attrib["width"]) > 0
        text = path.read_text()
        assert "var(" not in text
        assert "viewbox=" not in text
        known = set(re.findall(r"\.([a-z][\w-]*)", root.find(f"{SVG}style").text))
        drawn = {"line", "polyline", "polygon", "circle"}
        plain = [e for e in root.iter() if e.tag.removeprefix(SVG) in drawn and not e.attrib.get("class")]
        assert plain == []
        marks = {c for e in root.iter() for c in e.attrib.get("class", "").split() if re.match(r"s\d$", c)}
        assert marks <= known


def test_pictures_are_blurred_unless_the_user_says_otherwise(run, figures, tmp_path):
    shown = {path.name: path for path in run.export(figures=tmp_path, show_private=True)}
    differ = [
        not np.array_equal(np.asarray(Image.open(p)), np.asarray(Image.open(shown[p.name])))
        for p in figures
        if p.suffix == ".png"
    ]
    assert any(differ)
    assert not all(differ), "public ones are shown in any case"


def test_something_must_be_asked_for(run):
    with pytest.raises(BadValue, match="at least one of csv, latex and figures"):
        run.export()


def test_the_command_names_the_files(run, tmp_path, capsys):
    with pytest.raises(SystemExit) as stop:
        main(["export", str(run.folder), "--csv", str(tmp_path / "tables")])
    assert stop.value.code == 0
    assert str(tmp_path / "tables" / "findings.csv") in capsys.readouterr().out.replace("\n", "")


def test_a_metric_that_the_run_has_not_is_refused(run, capsys):
    with pytest.raises(SystemExit) as stop:
        main(["report", str(run.folder), "--markdown", "--metric", "psnrr"])
    assert stop.value.code == 2
    assert "did you mean psnr" in capsys.readouterr().err


def test_victims_are_counted_and_grants_joined():
    f = specimen.finding(metric="ssim")
    table = flat(f)
    assert table["victims"] == (len(f.victims) or "")
    assert Rows([f]).where(metric="psnr") == ()


def test_a_table_counts_searches_that_were_finished(tmp_path):
    """A column only where an attack searches, a dash for those that do not."""
    result = specimen.specimen(tmp_path)
    assert "searches finished" not in markdown(result)
    ended, cut = (Search(name="round 0", loss=x, truth=0.1, noise=1e-6) for x in (0.1, 0.2))
    first = result.findings[0]
    same = [(f.scenario, f.attack) == (first.scenario, first.attack) for f in result.findings]
    findings = [
        replace(f, searches=(ended, cut, cut)) if s and f.metric == first.metric else f
        for f, s in zip(result.findings, same, strict=True)
    ]
    result = replace(result, findings=tuple(findings))
    other = next(f.metric for f in findings if f.metric != first.metric and f.attack == first.attack)
    assert "| 1 of 3 |" in markdown(result, metrics=[other])  # of the setting, whichever metric is shown
    (section,) = [x for x in markdown(result).split("### ") if x.startswith(f"{first.scenario}\n")]
    head, _, *rows = [x for x in section.splitlines() if x.startswith("|")]
    assert head.endswith("| searches finished |")
    counted = [row for row in rows if row.endswith("| 1 of 3 |")]
    assert counted == [row for row in rows if f"| {first.attack} |" in row] != []
    assert all(row.endswith("| – |") for row in rows if row not in counted)
