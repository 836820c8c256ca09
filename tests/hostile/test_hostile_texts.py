"""Names that steer, break or deceive: every sink shows them, and no command ends in an unforeseen error."""

import csv
import itertools
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
import torch

import glasshouse
from glasshouse.cli import main

sys.path.insert(0, str(Path(__file__).parents[1] / "unit"))

import report_specimen as specimen
from tests.hostile.hostile_texts import ACTS, TEXTS, hostile_results, poisoned, write

from glasshouse.outside.text import markdown, visible
from glasshouse.results.files import write_result
from glasshouse.store import write_tensors


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> list[Path]:
    """Run folders with hostile names in everything that a report shows."""
    place = tmp_path_factory.mktemp("hostile")
    honest = specimen.specimen(place / "honest")
    write_result(honest, place / "honest" / "result.json")
    raw = json.loads((place / "honest" / "result.json").read_text())
    folders = []
    for number, result in enumerate(hostile_results(raw)):
        shutil.copytree(place / "honest", place / str(number))
        folders.append(write(result, place / str(number)))
    return folders


def ran(capsys, *arguments: str) -> tuple[int, str]:
    with pytest.raises(SystemExit) as stop:
        main([str(argument) for argument in arguments])
    shown = capsys.readouterr()
    return stop.value.code, shown.out + shown.err


def test_there_are_three_hundred_texts_and_each_stands_in_a_result(runs):
    assert len(set(TEXTS)) == len(TEXTS) == 300
    whole = [json.loads((run / "result.json").read_text()) for run in runs]
    values = json.dumps(whole)
    assert all(json.dumps(text)[1:-1] in values for text in TEXTS)


def test_no_command_fails_and_no_sink_has_a_character_that_acts(runs, tmp_path, capsys):
    for number, run in enumerate(runs):
        out = tmp_path / str(number)
        commands = [
            ("report", run), ("report", run, "--markdown"), ("report", run, "--json"),
            ("export", run, "--csv", out, "--latex", out, "--figures", out),
            ("compare", run, runs[0], "--out", out), ("compare", run, runs[0], "--json", "--out", out),
        ]  # fmt: skip
        for command in commands:
            code, shown = ran(capsys, *command)
            assert code in ((0, 1, 3) if command[0] == "compare" else (0,)), (command, shown[-2000:])
            assert ACTS.search(shown) is None, (command, ACTS.search(shown))
        files = [p for p in [run / "report.html", *out.iterdir()] if p.suffix != ".png"]
        assert {p.suffix for p in files} == {".html", ".csv", ".tex", ".svg", ".json"}
        for path in files:
            assert ACTS.search(path.read_text(encoding="utf-8")) is None, path
        assert not list(tmp_path.glob("*.tex")), "a name led out of the folder"


def test_drawings_are_xml_and_tables_open_as_text(runs, tmp_path, capsys):
    for number, run in enumerate(runs):
        out = tmp_path / str(number)
        code, shown = ran(capsys, "export", run, "--csv", out, "--figures", out)
        assert code == 0, shown[-2000:]
        for path in out.glob("*.svg"):
            ET.fromstring(path.read_text())
        for path in out.glob("*.csv"):
            for row in csv.reader(path.read_text().splitlines()):
                texts = [cell for cell in row if not re.fullmatch(r"-?[\d.]+(e-?\d+)?", cell)]
                assert not [cell for cell in texts if cell.lstrip().startswith(("=", "+", "-", "@"))]


def test_no_name_begins_a_line_of_its_own(tmp_path, capsys):
    """A title such as "x", newline, "every limit holds" would forge a line of the report."""
    honest = specimen.specimen(tmp_path / "honest")
    write_result(honest, tmp_path / "honest" / "result.json")
    raw = json.loads((tmp_path / "honest" / "result.json").read_text())
    shutil.copytree(tmp_path / "honest", tmp_path / "forged")
    run = write(poisoned(raw, (f"name{i}\nFORGED" for i in itertools.count())), tmp_path / "forged")
    commands = [
        ("report", run), ("report", run, "--full"), ("report", run, "--markdown"), ("export", run, "--annex"),
        ("compare", run, tmp_path / "honest", "--out", tmp_path),
    ]  # fmt: skip
    shown = [ran(capsys, *command)[1] for command in commands]
    shown += [path.read_text() for path in run.glob("annex.md")]
    assert "FORGED" in shown[1]
    assert not [row for text in shown for row in text.splitlines() if row.lstrip().startswith("FORGED")]
    assert not any(ACTS.search(path.read_text()) for path in run.glob("annex.*"))


def test_markdown_has_no_heading_link_or_html_of_others():
    markdown_it = pytest.importorskip("markdown_it")
    reader = markdown_it.MarkdownIt("gfm-like", {"linkify": False})
    for text in TEXTS:
        kinds = {t.type for t in reader.parse(markdown(text))}
        inside = {c.type for t in reader.parse(markdown(text)) for c in t.children or ()}
        assert not any(
            k.startswith(("heading", "html", "table", "list", "bullet", "ordered", "hr")) for k in kinds
        )
        assert not inside & {"link_open", "html_inline", "image", "em_open", "strong_open", "code_inline"}, (
            text
        )


@pytest.mark.parametrize(
    "encoding", ["cp1252", *(pytest.param(one, marks=pytest.mark.slow) for one in ("ascii", "utf-8"))]
)
def test_an_audit_ends_with_its_own_code_on_any_console(tmp_path, encoding):
    (tmp_path / "mini.toml").write_text(
        'name = "mini"\n[data]\nauxiliary = 30\nheldout = 30\n[model]\nname = "mlp"\n[federation]\n'
        'clients = 3\n[[attacks]]\nname = "linear_input"\n'
        '[audit]\nvictims = 3\ncontrols = false\nmetrics = ["psnr"]\n'
    )
    command = [
        str(Path(sys.executable).with_name("glasshouse")),
        "audit",
        "mini.toml",
        "--jobs",
        "1",
        "--out",
        "r",
    ]
    env = {**os.environ, "PYTHONIOENCODING": encoding}
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, env=env, check=False)
    assert done.returncode == 0, done.stderr[-500:]
    assert b"report: " in done.stdout
    assert ("●" in done.stdout.decode(encoding)) == (encoding == "utf-8")


def test_visible_is_idempotent_and_composes():
    for text in TEXTS:
        assert visible(visible(text)) == visible(text)
        assert ACTS.search(visible(text)) is None
    assert visible("e\u0301") == "\u00e9"


def test_every_sink_of_the_command_line_is_the_sanitiser():
    """A ``print`` or a bare rich console would be a second way out."""
    source = Path(glasshouse.__file__).parent
    ways = re.compile(r"(?<![\w.])print\(|(?<!\w)Console\(")
    found = [
        f"{path.name}: {line.strip()}"
        for folder in ("cli", "api", "report")
        for path in sorted((source / folder).rglob("*.py"))
        for line in path.read_text().splitlines()
        if ways.search(line) and path.name != "output.py" and ">>>" not in line
    ]
    allowed = (
        "progress.py: print(f",
        "interrupts.py: print(MESSAGE",
    )  # our own words, from a thread or a signal
    assert not [line for line in found if not line.startswith(allowed)]


NAMES = [
    b"a\x1b[2Jb",
    b"x\xff\xfe",
    b"=1+1",
    "\u202eabc".encode(),
    b"new\nline",
    b"# h",
    b"a\x9bb",
    b"[red]x[/red]",
]


@pytest.mark.parametrize("name", NAMES, ids=ascii)
def test_hostile_names_of_files_and_folders_end_no_command(name, runs, tmp_path, capsys):
    place = Path(os.fsdecode(os.fsencode(tmp_path) + b"/" + name))
    shutil.copytree(runs[0], place)
    model = place / place.with_suffix(".safetensors").name
    write_tensors(model, {"fc.weight": torch.ones(8, 64), "[/b]\x1b[2J.weight": torch.zeros(16, 16)})
    commands = [
        ("report", place), ("export", place, "--csv", place / "t", "--annex"), ("compare", place, runs[0]),
        ("guard", model, "--sarif", place / "out.sarif"), ("attest", place, "--key", place / "none"),
        ("verify", place / "result.json", "--key", place / "none"), ("register", place / "result.json"),
        ("show", place), ("report", place / "none"), ("check", place / "none.toml"),
    ]  # fmt: skip
    for command in commands:
        code, shown = ran(capsys, *command)
        assert code in (0, 1, 2, 3), (command, shown[-2000:])
        assert ACTS.search(shown) is None, (command, ACTS.search(shown))
