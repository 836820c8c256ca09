"""The papers beside the code: short, with a status, and naming nothing that is not there."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DECISIONS = sorted((ROOT / "docs" / "decisions").glob("[0-9]*.md"))
NUMBERS = {page.name[:4] for page in DECISIONS}
RESULTS = sorted((ROOT / "docs" / "results").glob("*.md"))
TEXTS = [
    *(ROOT / "src").rglob("*.py"),
    *(ROOT / "docs").rglob("*.md"),
    *(ROOT / name for name in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "pyproject.toml")),
]


def lines(page):
    return page.read_text(encoding="utf-8").splitlines()


@pytest.mark.parametrize("page", DECISIONS, ids=lambda page: page.name[:4])
def test_a_decision_has_a_status_a_problem_a_choice_and_a_price(page):
    text = page.read_text(encoding="utf-8")
    status = re.search(r"^Status: (accepted|superseded by (\d{4})), \d{4}-\d{2}-\d{2}$", text, re.MULTILINE)
    assert status is not None
    assert status[2] is None or status[2] in NUMBERS
    assert all(f"**{part}.**" in text for part in ("Problem", "Choice", "Price"))


def test_the_list_of_decisions_is_whole():
    listed = (ROOT / "docs" / "decisions" / "index.md").read_text(encoding="utf-8")
    for page in DECISIONS:
        title, _, status = lines(page)[:3]
        row = f"| [{page.name[:4]}]({page.name}) | {title[8:]} | {status.removeprefix('Status: ')} |"
        assert row in listed


def named(text):
    """Numbers of the decisions that a text refers to, in words or by a link."""
    for found in re.finditer(r"\bdecisions? ((?:\d{4}(?:, | and )?)+)", text):
        yield from re.findall(r"\d{4}", found[1])
    yield from re.findall(r"decisions/(\d{4})", text)


def test_every_decision_that_is_named_exists():
    gone = {
        (str(page.relative_to(ROOT)), number)
        for page in TEXTS
        for number in named(page.read_text(encoding="utf-8"))
        if number not in NUMBERS
    }
    assert gone == set()


def test_a_decision_that_is_gone_would_be_seen():
    assert list(named("see decisions 0001 and 9999, [0003](decisions/0003-x.md)")) == ["0001", "9999", "0003"]


@pytest.mark.parametrize("page", RESULTS, ids=lambda page: page.stem)
def test_a_results_page_is_short_and_says_what_limits_it(page):
    assert len(lines(page)) <= 120
    if page.stem != "not-reproduced":
        text = page.read_text(encoding="utf-8")
        assert "**Question.**" in text
        assert "\n## What limits it\n" in text


@pytest.mark.parametrize(
    "page", [page for page in RESULTS if page.stem != "not-reproduced"], ids=lambda page: page.stem
)
def test_a_results_page_names_its_command(page):
    assert f"make results PAGE={page.stem}" in page.read_text(encoding="utf-8")


def test_shares_and_decibels_have_a_digit_before_the_point():
    bare = [
        (page.name, number, found[0])
        for page in (*RESULTS, *(ROOT / "docs" / "results").glob("*.csv"))
        for number, line in enumerate(lines(page), start=1)
        if (found := re.search(r"(?<![\w.`])\.\d+", re.sub(r"`[^`]*`", "", line)))
    ]
    assert bare == []


def test_every_table_beside_a_page_is_linked_from_it():
    pages = "".join(page.read_text(encoding="utf-8") for page in RESULTS)
    tables = {path.name for path in (ROOT / "docs" / "results").glob("*.csv")}
    assert {name for name in tables if f"({name})" not in pages} == set()


def test_commands_name_modules_that_exist():
    said = {
        (page.name, name)
        for page in [*(ROOT / "docs").rglob("*.md"), ROOT / "README.md", ROOT / "CONTRIBUTING.md"]
        for name in re.findall(
            r"python -m ((?:reproduce|benchmarks|tests)[\w.]*)", page.read_text(encoding="utf-8")
        )
    }
    assert said
    missing = {
        (page, name)
        for page, name in said
        if not (ROOT / f"{name.replace('.', '/')}.py").exists()
        and not (ROOT / name.replace(".", "/")).is_dir()
    }
    assert missing == set()


def test_the_log_and_each_release_are_short():
    assert len(lines(ROOT / "docs" / "log.md")) <= 200
    releases = re.split(r"^## ", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]
    assert all(release.count("\n") <= 80 for release in releases)
