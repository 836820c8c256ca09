"""Measured attack success under DP guarantees, and the bound on any attack: ``python -m reproduce.dp_gap``.

Reads the measured cells of docs/results whose defence proves differential privacy, computes the bound of each
and prints docs/results/dp-gap.csv. ``--chart FILE`` draws it. Exit code 1 if the lower end of a
measured interval lies above its bound. The bound is the closed form Φ(Φ⁻¹(κ) + μ) of a unit that is in every
release. In PROLIN's rows a client answers about 30 of 150 rounds and ε counts 60, so their bounds hold but
are loose.
"""

import argparse
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from glasshouse.metrics.clients import Auc
from glasshouse.privacy.gaussian import gaussian_mu, gaussian_share

PAGES: Final = Path(__file__).parents[1] / "docs" / "results"
NUMBER: Final = r"[−-]?\d*\.?\d+"
INTERVAL: Final = re.compile(rf"({NUMBER})(?: %| of \d+)? \[({NUMBER}), ({NUMBER})\]")


@dataclass(frozen=True)
class Cell:
    """One figure of a results page under a guarantee.

    Attributes:
        page: stem of the page's file name.
        row: beginning of the row's first cells.
        column: heading of the column.
        name: label in the chart.
        chance: κ, success of guessing without the update; None: the figure is an AUC.
        mu: μ of the Gaussian DP guarantee over all releases.
        scale: unit of the page: 100 if it prints percentages.
    """

    page: str
    row: tuple[str, ...]
    column: str
    name: str
    chance: float | None
    mu: float
    scale: float = 1.0

    def measured(self) -> tuple[float, float, float]:
        """Value and interval, as printed.

        Raises:
            LookupError: the page has no such cell.
        """
        header: list[str] = []
        for line in (PAGES / f"{self.page}.md").read_text(encoding="utf-8").splitlines():
            cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
            if not line.startswith("|"):
                header = []
            elif not header:
                header = cells
            elif self.column in header and all(map(str.startswith, cells, self.row)):
                printed = cells[header.index(self.column)]
                if found := INTERVAL.search(printed):
                    value, low, high = (float(x.replace("−", "-")) / self.scale for x in found.groups())
                    return value, low, high
        raise LookupError(f"{self.page}.md has no interval in {self.row}, column '{self.column}'")

    def bound(self) -> float:
        """Upper bound for any attack; clients with and without a property are two steps apart."""
        if self.chance is None:
            return Auc().most(lambda rate: gaussian_share(rate, mu=2 * self.mu))
        return gaussian_share(self.chance, mu=self.mu)


BUDGETS: Final = (
    (1000, "update-level DP, ε = 1,000", "update-dp-1000"),
    (8, "update-level DP, ε = 8", "update-dp-8"),
    (1, "update-level DP, ε = 1", "update-dp-1"),
    (8, "DP-SGD, ε = 8", ""),
    (1, "DP-SGD, ε = 1", "dp-epsilon-1"),
)
"""(ε at δ = 1e-5 over the run, row in prolin.md, row in scale-mia.md)."""
MAUI: Final = (("1e6", 4.3e-4), ("1e5", 4.3e-3), ("1e4", 0.043), ("1e3", 0.43), ("1e2", 4.3), ("1e1", 43.0))
"""Rows of maui.md, and the noise on an update clipped to 100."""
INVERSION: Final = (8, 1)
"""ε per round, at δ = 1e-5, in the preset ``dp``; its federations have five rounds."""
FLOWER_NOISE: Final = 0.484
"""Noise of Flower's ``LocalDpMod`` for ε = 10 per round, on an update clipped to 1."""


def kept() -> Iterator[Cell]:
    """All cells with a guarantee and a metric bounded by it."""
    for epsilon, words, name in BUDGETS:
        mu = gaussian_mu(epsilon, delta=1e-5)
        for attack in ("REG", "posterior") if epsilon > 1 else ():
            yield Cell(
                "prolin",
                (words, attack),
                "AUC, chance 0.5",
                f"sums of 150 rounds, AUC of {attack}, {words}",
                None,
                mu,
            )
        for column in ("rate, paper's way", "blind rate") if name else ():
            yield Cell("scale-mia", (f"`{name}`",), column, f"Scale-MIA, {column}, {words}", 0.053, mu)
    for row, noise in MAUI:
        words, mu = f"update-level DP, ε = {float(row):,.0f}", min(100 / noise, 1e4)
        loud = Cell("maui", (row,), "rate, loud, by batch", f"Maui, rate, loud, {words}", None, mu)
        _, _, chance = replace(loud, column="chance of loud").measured()
        yield replace(loud, chance=chance)
    for defence in ("update", "DP-SGD"):
        for epsilon in INVERSION:
            mu = 5**0.5 * gaussian_mu(epsilon, delta=1e-5)
            row = (f"{defence}, ε = {epsilon} a round", "iDLG")
            words = f"Inversion, named among 100, {row[0]}"
            yield Cell("dp", row, "named among 100", words, 0.01, mu)
            if defence == "update":  # DP-SGD does not protect an example's label
                yield Cell("dp", row, "labels", f"Inversion, labels, {row[0]}", 0.297, mu)
    column, mu = "figure, n, 95 % interval", 1 / FLOWER_NOISE
    label = ("DP by Flower", "`label_inference`")
    yield Cell("flower", label, column, "Flower, ε = 10 a round, labels", 0.311, mu)
    image = ("", "`inverting_gradients`, 400 iterations", "identification 1")
    yield Cell("flower", image, column, "Flower, ε = 10 a round, identification", 0.01, mu, scale=100)


Row = tuple[Cell, tuple[float, float, float], float]
"""(figure, measured value with interval, bound)."""


def gaps() -> list[Row]:
    """All cells with their bounds."""
    return [(cell, cell.measured(), cell.bound()) for cell in kept()]


def table(rows: list[Row]) -> str:
    """The rows of docs/results/dp-gap.csv."""
    lines = ["figure,guessing,measured,low,high,the most that any attack could get"]
    for cell, (value, low, high), bound in rows:
        chance = 0.5 if cell.chance is None else cell.chance
        lines.append(f'"{cell.name}",{chance:.3f},{value:.3f},{low:.3f},{high:.3f},{bound:.3f}')
    return "\n".join(lines) + "\n"


def judged(rows: list[Row]) -> list[Row]:
    """Rows whose printed bound is below 1; the others are vacuous."""
    return [row for row in rows if round(row[2], 3) < 1]


def above(rows: list[Row]) -> list[str]:
    """Names of the figures whose lower end lies above their bound."""
    return [cell.name for cell, (_, low, _), bound in rows if low > bound]


def verdict(rows: list[Row]) -> str:
    """How many of the figures with a bound below 1 exceed it."""
    few = judged(rows)
    return f"{len(above(few))} of {len(few)} above, {len(rows) - len(few)} further bounds are 1"


WIDTH, LEFT, STEP, BLUE = 900, 390, 19, "#1f5fa8"


def chart(rows: list[Row]) -> str:
    """One line per figure: guessing (grey), measured value with interval (blue), bound (red)."""
    height = STEP * len(rows) + 58

    def x(share: float) -> float:
        return LEFT + share * (WIDTH - LEFT - 20)

    parts = [
        f'<line x1="{x(v):.1f}" y1="24" x2="{x(v):.1f}" y2="{height - 30}" stroke="#ddd"/>'
        f'<text x="{x(v):.1f}" y="{height - 14}" text-anchor="middle">{v:g}</text>'
        for v in (0, 0.25, 0.5, 0.75, 1)
    ]
    for number, (cell, (value, low, high), bound) in enumerate(rows):
        y = 34 + number * STEP
        chance = 0.5 if cell.chance is None else cell.chance
        parts.append(f'<text x="{LEFT - 10}" y="{y + 4}" text-anchor="end">{cell.name}</text>')
        parts.append(f'<line x1="{x(high):.1f}" y1="{y}" x2="{x(bound):.1f}" y2="{y}" stroke="#eccccc"/>')
        for at, colour, wide in ((chance, "#999", 1.5), (bound, "#c0392b", 2.5)):
            parts.append(
                f'<line x1="{x(at):.1f}" y1="{y - 6}" x2="{x(at):.1f}" y2="{y + 6}" '
                f'stroke="{colour}" stroke-width="{wide}"/>'
            )
        parts.append(
            f'<line x1="{x(low):.1f}" y1="{y}" x2="{x(high):.1f}" y2="{y}" stroke="{BLUE}" stroke-width="2"/>'
        )
        parts.append(f'<circle cx="{x(value):.1f}" cy="{y}" r="3.2" fill="{BLUE}"/>')
    legend = (
        ("#999", "guessing"),
        (BLUE, "measured, 95 %"),
        ("#c0392b", "the most that any attack could get"),
    )
    for (colour, words), at in zip(legend, (LEFT, LEFT + 80, LEFT + 205), strict=True):
        parts.append(f'<text x="{at}" y="13" fill="{colour}">{words}</text>')
    head = f'viewBox="0 0 {WIDTH} {height}" font-family="sans-serif" font-size="11"'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {head}>{"".join(parts)}</svg>\n'


def main() -> int:
    """Print the table, draw the chart; return 1 if a measured lower end lies above its bound."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--chart", type=Path)
    arguments = parser.parse_args()
    rows = gaps()
    print(f"{table(rows)}\n{verdict(rows)}")
    for name in above(rows):
        print(f"above its bound: {name}")
    if arguments.chart:
        arguments.chart.write_text(chart(rows), encoding="utf-8")
    return bool(above(rows))


if __name__ == "__main__":
    sys.exit(main())
