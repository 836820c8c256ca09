"""Random printed figures of docs/results, to reproduce: ``python -m reproduce.sample_figures [--seed 0]``.

Draws measured cells of tables, each as likely as any other (no settings, no figures of papers or of older
code), and prints where they stand, their row and column, and the command nearest above them. Run the command
again and compare: within the interval that is printed beside the figure, or to its last digit where the
command is deterministic; seconds, which are not, within a factor of 1.5 on the same kind of machine.
"""

import argparse
import csv
import random
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

PAGES = Path(__file__).parents[1] / "docs" / "results"
NUMBER = re.compile(r"\d")
MEASURED = re.compile(r"[*+−-]*\.?\d")
"""How a measured cell begins."""
SETTINGS = "n|m|b|k|attack|batch|seeds?|clients|width|iterations|restarts|rows|guesses"
GIVEN = re.compile(rf"\b({SETTINGS}|asked|known|papers?|published|before)\b")
"""In headings of settings, of others' figures, and of what older code had."""
OTHERS = re.compile(r"\b(paper|notebook)\b")
"""In the first heading of tables that are others' throughout."""
OF_A_PAPER = re.compile(r"(?<![`\w-])paper(?![\w-])")
"""In the first cells of rows that are a paper's; rows named after one, as `paper-64`, are ours."""
TABLE = re.compile(r"\]\(([a-z0-9-]+\.csv)\)")
COMMAND = re.compile(
    r"`((?:glasshouse (?:audit|guard)|make results|pytest -m slow|python -m (?:benchmarks|reproduce))[^`]*)`"
)


@dataclass(frozen=True, kw_only=True)
class Figure:
    """One cell of a table.

    Attributes:
        place: page and line.
        row: the row's first cells.
        column: its heading.
        value: as printed.
        command: the last one named above it, on the page.
    """

    place: str
    row: str
    column: str
    value: str
    command: str


def figures(page: Path) -> Iterator[Figure]:
    """Every measured cell of a page's tables and of the CSV files that it links."""
    header: list[str] = []
    command, lines = f"make results PAGE={page.stem}", page.read_text(encoding="utf-8").splitlines()
    for number, line in enumerate(lines, start=1):
        both = " ".join(lines[max(0, number - 2) : number])  # a command may go over two lines
        command = found[-1] if (found := COMMAND.findall(both)) else command
        for name in TABLE.findall(line):
            with (PAGES / name).open(encoding="utf-8", newline="") as file:
                first, *rows = csv.reader(file)
            for place, row in enumerate(rows, start=2):
                yield from cells_of(first, row, place=f"{name}:{place}", command=command)
        if not line.startswith("|"):
            header = []
            continue
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if not header:
            header = cells
        elif not set(line) <= set("|-: "):
            yield from cells_of(header, cells, place=f"{page.name}:{number}", command=command)


def cells_of(header: list[str], cells: list[str], *, place: str, command: str) -> Iterator[Figure]:
    """The measured cells of one row."""
    if OTHERS.search(header[0].lower()) or any(OF_A_PAPER.search(cell) for cell in cells[:2]):
        return
    words = ", ".join(c for c in cells[:2] if not NUMBER.match(c)) or cells[0]
    for heading, cell in list(zip(header, cells, strict=False))[1:]:
        if MEASURED.match(cell) and not GIVEN.search(heading.lower()):
            yield Figure(place=place, row=words, column=heading, value=cell, command=command)


def main() -> None:
    """Draw and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--count", type=int, default=15)
    parser.add_argument(
        "--pages", nargs="+", default=sorted({p.stem for p in PAGES.glob("*.md")} - {"not-reproduced"})
    )
    arguments = parser.parse_args()
    every = [one for name in arguments.pages for one in figures(PAGES / f"{name}.md")]
    pages = len(arguments.pages)
    print(f"{arguments.count} of {len(every):,} figures on {pages} pages, seed {arguments.seed}\n")
    print("| where | row | column | printed | command |\n|---|---|---|---|---|")
    for one in random.Random(arguments.seed).sample(every, arguments.count):
        print(f"| {one.place} | {one.row} | {one.column} | {one.value} | `{one.command}` |")


if __name__ == "__main__":
    main()
