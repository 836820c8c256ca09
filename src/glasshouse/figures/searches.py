"""Convergence of searches: losses at the claim and at the ground truth per victim, and loss curves."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Final, final

from glasshouse.attacks.base import ClassRepresentatives, Reconstruction
from glasshouse.attacks.sequences import Sequences
from glasshouse.figures.base import CellEvidence
from glasshouse.registry import Card
from glasshouse.results.exhibits import line, lines, table
from glasshouse.results.records import Exhibit

COLUMNS: Final = (
    "setting", "attack", "victim", "loss of the claim", "loss of the truth", "the generator's part",
    "the search's part", "search",
)  # fmt: skip
CAPTION: Final = (
    "The attack's own loss at its claim and, evaluated after the claims were filed, at the truth. A claim "
    "above the truth is an unfinished search: more iterations or restarts can help. Below it, the loss "
    "prefers something else: more search will not help. Of a generator: what its image nearest to the truth "
    "has more than the truth (the generator's part), and the claim more than that image (the search's)."
)
SHOWN: Final = 8


@final
@dataclass(frozen=True, kw_only=True)
class Searches:
    """A table of the losses of all victims, and the loss curves of the first eight."""

    card: ClassVar[Card] = Card(summary="losses of claim and truth: was the search finished?")
    reads: ClassVar[frozenset[type]] = frozenset({Reconstruction, ClassRepresentatives, Sequences})

    def draw(self, cell: CellEvidence) -> Iterator[Exhibit]:
        setting = " + ".join(d.name for d in cell.defenses) or "no defence"
        for attack in cell.attacks:
            searches = next((f.searches for f in attack.findings if f.searches), ())
            if not searches:
                continue
            rows = [
                [
                    setting,
                    attack.label,
                    s.name,
                    f"{s.loss:.4g}",
                    f"{s.truth:.4g}",
                    "" if s.projected is None else f"{s.projected - s.truth:.4g}",
                    "" if s.projected is None else f"{s.loss - s.projected:.4g}",
                    ("finished" if s.finished else "unfinished") + (", still improving" if s.falling else ""),
                ]
                for s in searches
            ]
            yield table(
                cell.place, "Was the search finished?", CAPTION, columns=COLUMNS, rows=rows, join="searches"
            )
            curves = [s for s in searches if len(s.curve) > 1][:SHOWN]
            if curves:
                drawn = [line(s.name, *map(list, zip(*s.curve, strict=True))) for s in curves]
                yield lines(
                    cell.place,
                    f"{attack.label}: the loss over its search, {setting}",
                    "The smallest loss of the attack so far; the first victims, not a selection.",
                    labels=("steps", f"loss of {attack.label}"),  # charts of one loss share their axes
                    series=drawn,
                )
