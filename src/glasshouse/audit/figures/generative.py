"""What is shown of an attack that searches a generator: both ends of its scale, its samples, its detector."""

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import numpy as np
import torch

from glasshouse.attacks.base import DefenseGuess, GenerativeAttack, Reconstruction
from glasshouse.audit.attacking.claims import Outcome
from glasshouse.audit.attacking.needs import attack_of
from glasshouse.audit.figures.generator_scale import CAPTION, COLUMNS, scale_rows
from glasshouse.audit.figures.landscape import landscape
from glasshouse.audit.scoring.score import Judge
from glasshouse.metrics.shares import proportion_bounds
from glasshouse.results.records import Exhibit
from glasshouse.scenario.axes import Cell
from glasshouse.transcript.files import read_transcript
from glasshouse.wire import Batch

SHOWN: Final = 8


def generative_exhibits(
    run: str,
    cell: Cell,
    position: int,
    outcomes: Mapping[str, Sequence[Outcome]],
    judges: Mapping[str, Judge],
) -> list[Exhibit]:
    """Exhibits of one attack in one cell; none for attacks without a generator or without a claim."""
    spec = cell.scenario.attacks[position]
    attack = attack_of(spec.name, spec.arguments)
    claims = [c for every in outcomes.values() for o in every for c in o.claims]
    found = _detector(cell, spec.label or spec.name, [c for c in claims if isinstance(c, DefenseGuess)])
    if not isinstance(attack, GenerativeAttack):
        return found
    for folder, every in outcomes.items():
        judge = judges[folder]
        if judge.draws is None or judge.auxiliary is None:
            continue
        terms = read_transcript(Path(folder) / "transcript", trust_factory=True).terms
        prior = attack.prior(terms, judge.auxiliary if cell.scenario.grants.auxiliary else None)
        path = Path(folder) / "truth" / f"samples-{position:02d}-{spec.name}.npz"
        found.append(
            _samples(
                Path(run),
                path,
                cell=cell,
                attack=spec.label or spec.name,
                draws=judge.draws,
                auxiliary=judge.auxiliary,
            )
        )
        rows = scale_rows(cell, every, judge, prior=prior, latent=attack.latent)
        found.append(
            Exhibit(
                kind="table",
                scenario=cell.scenario.name,
                title=_title(f"{spec.label or spec.name}: both ends of its scale", cell),
                caption=CAPTION,
                data={"columns": list(COLUMNS), "rows": rows},
            )
        )
        found += _landscape(cell, position, Path(folder), every, judge)
        break  # the other groups repeat the cell with other seeds
    return found


def _landscape(
    cell: Cell, position: int, folder: Path, outcomes: Sequence[Outcome], judge: Judge
) -> list[Exhibit]:
    spec = cell.scenario.attacks[position]
    claims = [c for o in outcomes for c in o.claims if isinstance(c, Reconstruction)]
    title = _title(f"{spec.label or spec.name}: loss around the private image", cell)
    if not claims:
        return []
    shown = landscape(
        cell,
        title,
        folder,
        claims[0],
        judge,
        distance=spec.arguments.get("distance", "squared"),
        steps=spec.arguments.get("local_steps", "simulate"),
    )
    return [shown] if shown else []


def _samples(run: Path, path: Path, *, cell: Cell, attack: str, draws: Batch, auxiliary: Batch) -> Exhibit:
    """Draws of the generator, each beside the nearest auxiliary image: has it learnt them by heart?"""
    shown = draws.inputs[:: max(1, len(draws) // SHOWN)][:SHOWN]
    gaps = torch.cdist(shown.flatten(1), auxiliary.inputs.flatten(1))
    pairs = torch.stack([shown, auxiliary.inputs[gaps.argmin(1)]], dim=1)
    np.savez_compressed(path, images=pairs.permute(0, 1, 3, 4, 2).clamp(0, 1).numpy())
    return Exhibit(
        kind="pictures",
        scenario=cell.scenario.name,
        title=_title(f"{attack}: samples of its generator", cell),
        caption="What the generator draws without any update, each with the auxiliary image nearest to it.",
        data={
            "columns": ["sample", "nearest auxiliary image"],
            "rows": [str(i + 1) for i in range(len(shown))],
        },
        file=str(path.resolve().relative_to(run.resolve())),
        private=("nearest auxiliary image",),
    )


def _detector(cell: Cell, attack: str, guesses: Sequence[DefenseGuess]) -> list[Exhibit]:
    """How often the attack named the defences that were on, in their order."""
    if not guesses:
        return []
    right = " + ".join(d.name for d in cell.scenario.defenses) or "none"
    hits = sum(g.name == right for g in guesses)
    low, high = proportion_bounds(hits, len(guesses))
    rows = [
        [name, str(count), "yes" if name == right else ""]
        for name, count in Counter(g.name for g in guesses).most_common()
    ]
    return [
        Exhibit(
            kind="table",
            scenario=cell.scenario.name,
            title=_title(f"{attack}: which defence it sees", cell),
            caption=f"On were: {right}. Named right: {hits} of {len(guesses)} ({low:.2f} to {high:.2f}).",
            data={"columns": ["named", "updates", "right"], "rows": rows},
        )
    ]


def _title(text: str, cell: Cell) -> str:
    where = ", ".join(f"{name.split('.')[-1]} = {value}" for name, value in cell.axes.items())
    return text + (f" ({where})" if where else "")
