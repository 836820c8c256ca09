"""Tables in the documents: every row has as many cells as its head, or figures stand under a wrong one."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [*sorted((ROOT / "docs").rglob("*.md")), ROOT / "README.md", ROOT / "CHANGELOG.md"]
RULE = re.compile(r"\|(\s*:?-+:?\s*\|)+\s*")


def cells(row):
    return re.sub(r"`[^`]*`", "", row).replace("\\|", "").count("|") - 1


def uneven(text):
    """Numbers of the lines of tables whose cells are not as many as the columns."""
    lines, columns, found, code = text.split("\n"), 0, [], False
    for number, line in enumerate(lines, start=1):
        code ^= line.startswith("```")
        if code or not line.startswith("|"):
            columns = 0
            continue
        if not columns and number < len(lines) and RULE.fullmatch(lines[number]):
            columns = cells(line)
        if columns and cells(line) != columns:
            found.append(number)
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_row_has_as_many_cells_as_the_head(page):
    assert uneven(page.read_text(encoding="utf-8")) == []


def test_a_row_with_a_cell_too_many_is_seen():
    assert uneven("| a | b |\n|---|---|\n| 1 | 2 |\n| 1 | 2 | 3 |\n\n```\n| x |\n```\n| `p|q` | 2 |") == [4]
