"""CPU seconds per batch of DAGER, ours against the paper's method, on one thread with the same gradients.

    python -m benchmarks.text_speed FOLDER [--batches 8,16] [--growth] [--data FOLDER]

The paper's method, reimplemented: every position tests the whole vocabulary, and every prefix is sent through
the first block again with each possible next token. Spans, thresholds, candidates and beam are those of our
attack, so that only the search differs. ``--growth`` times only ours over batch size, length and vocabulary
size, on a model of GPT-2's width and three layers (the attack uses two), and fits an exponent to each.

One line per run, also stored as a file in FOLDER; existing ones are not run again.
"""

import argparse
import json
import os
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from benchmarks.text import LENGTH, MARKS, Corpus, gradient
from glasshouse.attacks.base import About
from glasshouse.attacks.text.dager import Dager
from glasshouse.attacks.text.reading import Answer, input_span
from glasshouse.attacks.text.span import ROWS, Span, received
from glasshouse.models.text.base import TextModel
from glasshouse.models.text.gpt2 import gpt2
from glasshouse.tokens.vocabulary import Vocabulary

LEAST = 2e-3
PREFIXES = 256
"""Number of whole prefixes that the paper's method sends through the block at once."""


def slow(model: TextModel, sent: Mapping[str, Tensor], *, beam: int, length: int) -> set[tuple[int, ...]]:
    """The paper's search."""
    first, second = (input_span(model, layer, sent) for layer in (0, 1))
    assert first is not None
    assert second is not None
    sets = []
    for position in range(length):
        tokens = torch.cat([_inside(model, first, position, rows) for rows in _rows(model)])
        if not len(tokens):
            break
        sets.append(tokens)
    ended: set[tuple[int, ...]] = set()
    alive = torch.zeros(1, 0, dtype=torch.int64)
    for tokens in sets:
        kept, best = [], []
        for prefix in alive:
            longer = torch.cat([prefix.expand(len(tokens), -1), tokens[:, None]], dim=1)
            away = torch.cat([_away(model, second, part) for part in longer.split(PREFIXES)])
            right = (away < LEAST).all(1)
            if not bool(right.any()):
                ended.add(tuple(prefix.tolist()))
            kept.append(longer[right])
            best.append(away[right].mean(1))
        alive = torch.cat(kept)[torch.cat(best).argsort()[:beam]]
    return ended | {tuple(row.tolist()) for row in alive}


def _rows(model: TextModel) -> Iterator[Tensor]:
    size = model.anatomy.tokens.num_embeddings
    yield from (torch.arange(start, min(start + ROWS, size)) for start in range(0, size, ROWS))


def _inside(model: TextModel, span: Span, position: int, tokens: Tensor) -> Tensor:
    return tokens[_distance(span, received(model, tokens, position)) < LEAST]


def _away(model: TextModel, span: Span, tokens: Tensor) -> Tensor:
    """Span distances (N, L) of the second attention layer's inputs for whole prefixes (N, L)."""
    places = torch.arange(tokens.shape[1]).expand(tokens.shape)
    hidden = model.through(0, model.embed(tokens, places), places, torch.ones_like(tokens, dtype=torch.bool))
    return _distance(span, model.anatomy.blocks[1].attended(hidden))


def _distance(span: Span, inputs: Tensor) -> Tensor:
    """Relative distance from the span, by projecting onto the span and back."""
    unit = inputs / inputs.norm(dim=-1, keepdim=True)
    return (unit - unit @ span.basis.T @ span.basis).norm(dim=-1)


def ours(model: TextModel, sent: Mapping[str, Tensor], *, batch: int, length: int) -> set[tuple[int, ...]]:
    """Our attack."""
    answer = Answer(about=About(rounds=(0,)), model=model, sent=sent, examples=batch, steps=1)
    found = Dager(least=LEAST).sentences(answer, length=length, generator=torch.Generator())
    return {one.tokens for one in found}


def run(folder: Path, corpus: Corpus, *, batch: int, length: int, size: int, both: bool) -> None:
    """Time one batch, and print the result."""
    path = folder / f"b{batch}-l{length}-v{size}-{'both' if both else 'ours'}.json"
    if not path.exists():
        torch.manual_seed(0)
        marks = MARKS["gpt2"] if size == 50257 else Vocabulary(size=size, pad=size - 1, end=size - 1)
        model = gpt2((length,), 2, vocabulary=marks, layers=12 if both else 3).eval()
        sentences = [[t % (size - 1) for t in one][: length - 1] for one in corpus.draw(batch, 7)]
        tokens = marks.stack(sentences, length=length)
        sent, _ = gradient(model, tokens, torch.zeros(batch, dtype=torch.int64))
        truth = {tuple(one) for one in sentences}
        record: dict[str, float] = {"batch": batch, "length": length, "vocabulary": size}
        record["tokens"] = sum(map(len, truth))
        with torch.inference_mode():
            began = time.process_time()
            record["exact"] = len(ours(model, sent, batch=batch, length=length) & truth)
            record["seconds"] = time.process_time() - began
            if both:
                began = time.process_time()
                record["exact_slow"] = len(slow(model, sent, beam=16 * batch, length=length) & truth)
                record["seconds_slow"] = time.process_time() - began
                record["times"] = record["seconds_slow"] / record["seconds"]
        path.write_text(json.dumps(record))
    print(json.dumps({k: round(v, 2) for k, v in json.loads(path.read_text()).items()}), flush=True)


def main() -> None:
    """Parse the command line and run."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--batches", default="8,16")
    parser.add_argument("--growth", action="store_true")
    parser.add_argument("--data", type=Path, default=Path(os.environ.get("GLASSHOUSE_DATA", ".")) / "text")
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    corpus = Corpus(arguments.data, "rotten_tomatoes")
    if not arguments.growth:
        for batch in map(int, arguments.batches.split(",")):
            run(arguments.folder, corpus, batch=batch, length=LENGTH, size=50257, both=True)
        return
    for batch in (1, 2, 4, 8, 16):
        run(arguments.folder, corpus, batch=batch, length=LENGTH, size=50257, both=False)
    for length in (4, 8, 16, 32):
        run(arguments.folder, corpus, batch=8, length=length, size=50257, both=False)
    for size in (3000, 12_500):
        run(arguments.folder, corpus, batch=8, length=LENGTH, size=size, both=False)
    show_exponents(arguments.folder)


def show_exponents(folder: Path) -> None:
    """Log-log slopes of seconds over tokens (more or longer sentences) and over vocabulary size."""
    records = [json.loads(path.read_text()) for path in sorted(folder.glob("*-ours.json"))]
    rows = {
        "batch": [one for one in records if one["length"] == LENGTH and one["vocabulary"] == 50257],
        "length": [one for one in records if one["batch"] == 8 and one["vocabulary"] == 50257],
        "vocabulary": [one for one in records if one["batch"] == 8 and one["length"] == LENGTH],
    }
    for name, some in rows.items():
        sizes = [one["vocabulary" if name == "vocabulary" else "tokens"] for one in some]
        slope, _ = np.polyfit(np.log(sizes), np.log([one["seconds"] for one in some]), 1)
        print(f"{name}: seconds grow as its {slope:.2f}th power, {len(some)} runs", flush=True)


if __name__ == "__main__":
    main()
