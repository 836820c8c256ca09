"""Membership of a sentence: projres on GPT-2, members of a batch against non-members.

    python -m reproduce.text_membership FOLDER [--batches 4,16] [--width 256] [--data FOLDER]

One piece per batch, a file in FOLDER; existing pieces are not computed again. Finally prints the table over
all pieces: AUC, TPR at 1 % FPR, and the share of members that the attack identifies. Sentences are those of
Rotten Tomatoes not used by any row of ``reproduce.text`` when its attacks were last fixed; members and
non-members are disjoint. Only the parts of the gradient that projres reads are computed: those of the first
two attention layers; the model has GPT-2's vocabulary, width (or ``--width``) and first ``LAYERS`` layers.
Intervals are clustered by batch.
"""

import argparse
import json
import os
import time
from math import ceil
from pathlib import Path
from typing import Any

import numpy as np
import torch

from glasshouse.attacks.base import About
from glasshouse.attacks.text.projres import NEEDS, SUBJECT, ProjRes, residual
from glasshouse.attacks.text.reading import Answer, input_spans
from glasshouse.metrics.membership import auc, tpr_at_fpr
from glasshouse.metrics.statistics.interval import Interval
from glasshouse.metrics.statistics.shares import share_interval
from glasshouse.models.text.base import TextModel
from reproduce.text import LENGTH, Corpus, Setting, build, defended, gradient

MEMBERS = 500
"""Minimal number of members per batch size."""
OTHERS = 8
"""Minimal number of non-members per batch; larger batches have as many as members."""
LAYERS = 3
"""Number of layers, of GPT-2's 12; the attack reads the first two."""
NOISE = (0.0, 1e-4, 1e-3)
"""Standard deviations of the noise on every gradient entry."""


def piece(model: TextModel, sentences: list[list[int]], *, batch: int, number: int) -> dict[str, Any]:
    """Scores of one batch's sentences (members, the first ones) and of non-members, by noise level."""
    began = time.process_time()
    tokens = model.vocabulary.stack(sentences, length=LENGTH)
    sent, _ = gradient(model, tokens[:batch], torch.zeros(batch, dtype=torch.int64))
    record: dict[str, Any] = {"batch": batch, "number": number, "noise": {}}
    record["tokens"] = int(model.vocabulary.real(tokens[:batch]).sum())
    record["gradient_seconds"] = time.process_time() - began
    torch.manual_seed(number)
    for noise in NOISE:
        seen = defended(
            sent, Setting(table="membership", defence="noise" if noise else "none", strength=noise)
        )
        answer = Answer(about=About(rounds=(0,)), model=model, sent=seen, examples=batch, steps=1)
        both = input_spans(answer, subject=SUBJECT, needs=NEEDS, both=False)
        judged = [residual(model, both, one, least=ProjRes.least) for one in tokens.split(1)]
        record["noise"][f"{noise:g}"] = {"scores": [-d for d, _ in judged], "inside": [s for _, s in judged]}
    record["seconds"] = time.process_time() - began
    return record


def compute(folder: Path, data: Path, batches: list[int], width: int) -> None:
    """Compute all missing pieces."""
    torch.set_num_threads(1)
    corpus = Corpus(data, "rotten_tomatoes")
    model = build(
        Setting(table="membership", arguments={"layers": LAYERS, "width": width, "heads": width // 64}), "cpu"
    )
    first_two = {
        id(p)
        for block in model.anatomy.blocks[:2]
        for layer, _ in block.projections().values()
        for p in layer.parameters()
    }
    for p in model.parameters():
        p.requires_grad_(id(p) in first_two)
    strangers = corpus.unseen[2 * MEMBERS :]
    for batch in batches:
        beside = max(batch, OTHERS)
        for number in range(ceil(MEMBERS / batch)):
            path = folder / f"member-b{batch}-{number:03d}.json"
            if path.exists():
                continue
            own = corpus.unseen[batch * number : batch * (number + 1)]
            others = strangers[beside * number : beside * (number + 1)]
            path.write_text(json.dumps(piece(model, own + others, batch=batch, number=number)))


def show(folder: Path) -> None:
    """Print one line per batch size and noise level."""
    records = [json.loads(path.read_text()) for path in sorted(folder.glob("member-*.json"))]
    for batch in sorted({one["batch"] for one in records}):
        mine = [one for one in records if one["batch"] == batch]
        tokens = sum(one["tokens"] for one in mine) / len(mine)
        for noise in NOISE:
            print(f"batch {batch:3d} ({tokens:.0f} tokens) noise {noise:g}: {_line(mine, f'{noise:g}')}")


def _line(records: list[dict[str, Any]], noise: str) -> str:
    scores, inside, member, runs = (
        np.concatenate([column(one, noise) for one in records])
        for column in (
            lambda one, key: np.array(one["noise"][key]["scores"]),
            lambda one, key: np.array(one["noise"][key]["inside"]) >= ProjRes.share,
            lambda one, key: np.arange(len(one["noise"][key]["scores"])) < one["batch"],
            lambda one, key: np.full(len(one["noise"][key]["scores"]), one["number"]),
        )
    )
    parts = {
        "AUC": auc(scores, member, runs=runs),
        "TPR at 1 % FPR": tpr_at_fpr(scores, member, fpr=0.01, runs=runs),
        "members named": share_interval(inside[member], runs[member]),
        "others named": share_interval(inside[~member], runs[~member]),
    }
    sizes = f"{int(member.sum())} members, {int((~member).sum())} others, {len(records)} batches"
    return "  ".join(f"{name} {_text(one)}" for name, one in parts.items()) + "  " + sizes


def _text(one: Interval) -> str:
    return f"{one.value:.3f} [{one.low:.3f}, {one.high:.3f}]"


def main() -> None:
    """Parse the command line and run."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--batches", default="4,16,32,64")
    parser.add_argument("--width", type=int, default=768)
    parser.add_argument("--data", type=Path, default=Path(os.environ.get("GLASSHOUSE_DATA", ".")) / "text")
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    compute(arguments.folder, arguments.data, [int(b) for b in arguments.batches.split(",")], arguments.width)
    show(arguments.folder)


if __name__ == "__main__":
    main()
