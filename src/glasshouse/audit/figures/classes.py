"""What is shown of a logit protocol: accuracy per round, the confidence gap, quality per round, every null.

Shape letters: L private classes, C channels, H and W pixels.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import numpy as np
import torch
from torch import Tensor

from glasshouse.attacks.base import ClassRepresentatives
from glasshouse.audit.attacking.claims import Outcome
from glasshouse.audit.scoring.class_score import OWN_PRIOR, PRIOR, null_images
from glasshouse.audit.scoring.score import Judge
from glasshouse.audit.simulation.record import GroupRecord
from glasshouse.metrics.base import Metric
from glasshouse.registry import load
from glasshouse.results.records import Exhibit
from glasshouse.scenario.axes import Cell

SHOWN: Final = 8
CURVE: Final = "ssim_private"
"""Metric of the curve of quality per round."""


def federation_exhibits(cell: Cell, record: GroupRecord) -> list[Exhibit]:
    """Accuracy of every party per round, and entropies of their last predictions, of the first seed."""
    parties, entropies = record.parties, record.entropies
    made = []
    if parties:
        lines: dict[str, tuple[list[int], list[float]]] = {}
        for row in parties:
            x, y = lines.setdefault(f"{row['who']} on {row['on']} data", ([], []))
            x.append(row["round"])
            y.append(row["accuracy"])
        made.append(
            Exhibit(
                kind="lines",
                scenario=cell.scenario.name,
                title=_title("Accuracy of the federation", cell),
                caption="Upload 0 comes before the first round. Clients: mean over clients; first seed. "
                "Public images: of classes that the models know (dsfl: the private ones).",
                data={
                    "x_label": "upload",
                    "y_label": "accuracy",
                    "series": [{"name": n, "x": x, "y": y} for n, (x, y) in lines.items()],
                },
            )
        )
    if entropies:
        made.append(
            Exhibit(
                kind="histogram",
                scenario=cell.scenario.name,
                title=_title("The confidence gap", cell),
                caption="Entropy of the last predictions: clients are surer of private data than the server.",
                data={
                    "x_label": "entropy of a prediction, nats",
                    "series": [{"name": n, "values": v} for n, v in entropies.items()],
                },
            )
        )
    return made


def class_exhibits(
    run: str, cell: Cell, attack: str, outcomes: Mapping[str, Sequence[Outcome]], judges: Mapping[str, Judge]
) -> list[Exhibit]:
    """Of one attack: pictures of the first seed, the curve over rounds, and every null of every metric."""
    claims = {
        folder: [c for o in every for c in o.claims if isinstance(c, ClassRepresentatives)]
        for folder, every in outcomes.items()
    }
    claims = {folder: sorted(c, key=lambda c: len(c.about.rounds)) for folder, c in claims.items() if c}
    if not claims:
        return []
    folder, first = next(iter(claims.items()))
    made = [_pictures((Path(run), Path(folder)), cell, attack, first[-1], judges[folder])]
    made += _curve(cell, attack, claims, judges)
    return [*made, _nulls(cell, attack, claims, judges)]


def _pictures(
    place: tuple[Path, Path], cell: Cell, attack: str, claim: ClassRepresentatives, judge: Judge
) -> Exhibit:
    run, folder = place
    gallery = judge.context.gallery
    assert gallery is not None  # such claims are made under data.domains alone
    labels = claim.labels[:SHOWN]
    nulls = null_images(gallery, labels, judge.draws)
    columns = {"private mean": gallery.people[labels], attack: claim.inputs[:SHOWN], **nulls}
    images = torch.stack(list(columns.values()), 1).permute(0, 1, 3, 4, 2).clamp(0, 1).numpy()
    path = folder / "truth" / f"classes-{_plain(attack)}.npz"
    np.savez_compressed(path, images=images)
    return Exhibit(
        kind="pictures",
        scenario=cell.scenario.name,
        title=_title(attack, cell),
        caption="The first private classes, each with what the attack and each null adversary show of it.",
        data={"columns": list(columns), "rows": [str(int(j)) for j in labels]},
        file=str(path.resolve().relative_to(run.resolve())),
        private=("private mean", attack),
    )


def _curve(
    cell: Cell,
    attack: str,
    claims: Mapping[str, Sequence[ClassRepresentatives]],
    judges: Mapping[str, Judge],
) -> list[Exhibit]:
    metric: Metric = load("metrics", CURVE)()
    points: dict[int, list[float]] = {}
    null: list[float] = []
    name = PRIOR
    for folder, every in claims.items():
        judge, context = judges[folder], judges[folder].context
        assert context.gallery is not None
        for claim in every:
            value = metric.score(claim.inputs, claim.labels, context=context).mean()
            points.setdefault(max(claim.about.rounds), []).append(float(value))
        shown = null_images(context.gallery, every[-1].labels, judge.draws)
        name = OWN_PRIOR if OWN_PRIOR in shown else PRIOR
        null.append(float(metric.score(shown[name], every[-1].labels, context=context).mean()))
    if len(points) < 2:
        return []
    x, level = sorted(points), float(np.mean(null))
    return [
        Exhibit(
            kind="lines",
            scenario=cell.scenario.name,
            title=_title(f"{attack}: quality per round", cell),
            caption="SSIM with the private mean, on the rows that count; mean over classes and seeds.",
            data={
                "x_label": "upload",
                "y_label": "SSIM",
                "series": [
                    {"name": attack, "x": x, "y": [float(np.mean(points[r])) for r in x]},
                    {"name": name, "x": [x[0], x[-1]], "y": [level, level], "null": True},
                ],
            },
        )
    ]


def _nulls(
    cell: Cell,
    attack: str,
    claims: Mapping[str, Sequence[ClassRepresentatives]],
    judges: Mapping[str, Judge],
) -> Exhibit:
    rows: list[list[str]] = []
    names: list[str] = []
    for plugin in cell.scenario.audit.metrics:
        metric: Metric = load("metrics", plugin.name)(**plugin.arguments)
        if metric.claim != "class_representatives" or metric.reads != "inputs":
            continue
        values: dict[str, list[float]] = {}
        for folder, every in claims.items():
            judge, claim = judges[folder], every[-1]
            assert judge.context.gallery is not None
            shown: dict[str, Tensor] = {
                attack: claim.inputs,
                **null_images(judge.context.gallery, claim.labels, judge.draws),
            }
            for name, images in shown.items():
                found = metric.score(images, claim.labels, context=judge.context)
                values.setdefault(name, []).extend(found.tolist())
        names = list(values)
        rows.append([plugin.name, *(f"{np.mean(v):.3f}" for v in values.values())])
    return Exhibit(
        kind="table",
        scenario=cell.scenario.name,
        title=_title(f"{attack}: beside every null", cell),
        caption="Means over private classes and seeds. The best null of a row is what a finding quotes; "
        "a learned prior's own score is the translator's.",
        data={"columns": ["metric", *names], "rows": rows},
    )


def _title(text: str, cell: Cell) -> str:
    where = ", ".join(f"{name.split('.')[-1]} = {value}" for name, value in cell.axes.items())
    return text + (f" ({where})" if where else "")


def _plain(text: str) -> str:
    return "".join(ch if ch.isalnum() else "-" for ch in text)
