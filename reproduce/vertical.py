"""Tables of docs/results/vertical.md: what two parties of a vertical federation read of each other.

Run: python -m reproduce.vertical labels|rows [--runs N]
Every line: what was read, what public rows reach by themselves, and how well the federation predicts after
60 rounds under the same noise or rounding.
"""

import argparse
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from glasshouse.attacks.rows.vertical import EmbeddingRegression, GradientDirection
from glasshouse.attacks.tabular import RowLabels
from glasshouse.data.tables.clinic import TABLE, clinic
from glasshouse.federation.protocols.documents.vertical import Couple, Vertical
from glasshouse.metrics.base import ScoreContext
from glasshouse.metrics.statistics.interval import mean_interval
from glasshouse.metrics.tables.rows import Cells, RowLabelsRight, RowsExact
from glasshouse.rng import Rng
from glasshouse.wire import Batch
from reproduce.documents import played, sample

ROUNDS = 60
Floats = NDArray[np.float64]


def labels(runs: int) -> None:
    """Labels by the directions of gradients, over rounds, noise and rounding."""
    print("round, known, change | labels right [95 %] | public model | accuracy after 60 rounds")
    lines: list[tuple[int, dict[str, Any]]] = [(0, {}), (20, {}), (59, {}), (0, {"known": 10})]
    lines += [(0, {"noise": noise}) for noise in (0.5, 1.0, 2.0, 4.0)]
    lines += [(0, {"step": step}) for step in (1.0, 2.0, 4.0)]
    for seen, options in lines:
        how = {"known": 30, "reads": "gradients", **options}
        scores = [_labels_of(seed, seen, how) for seed in range(runs)]
        _print(f"{seen}, {how['known']}, {_words(options)}", scores, how)


def rows(runs: int) -> None:
    """Rows by regression on embeddings, over their width, the people who are known, noise and rounding."""
    print("width, known, change | cells right [95 %], rows whole | public rows | accuracy after 60 rounds")
    lines: list[dict[str, Any]] = [{"width": width} for width in (2, 8, 32, 64)]
    lines += [{"width": 32, "known": known} for known in (10, 100)]
    lines += [{"width": 32, "noise": noise} for noise in (0.5, 2.0)]
    lines += [{"width": 32, "step": 2.0}]
    for options in lines:
        how = {"known": 30, "hidden": 128, **options}
        scores = [_rows_of(seed, how) for seed in range(runs)]
        _print(f"{how['width']}, {how['known']}, {_words(options)}", scores, how)


def _labels_of(seed: int, seen: int, how: dict[str, Any]) -> tuple[float, float, float]:
    source = clinic("")
    own, public = sample(source, 120 + how["known"], seed)
    view = played(source, own, "vertical", rounds=seen + 1, options=how)(seen=(seen,))
    (claim,) = GradientDirection().run(view, rng=Rng.root(seed))
    assert isinstance(claim, RowLabels)
    secret = own.pick(torch.arange(how["known"], len(own)))
    truth = torch.cat([secret.inputs.double(), secret.labels.double()[:, None]], 1)
    context = ScoreContext(inputs=source.inputs)
    metric = RowLabelsRight()
    guessed = metric.blind(claim.labels, truth, public, context=context)
    assert guessed is not None
    return float(metric.score(claim.labels, truth, context=context).mean()), 0.0, float(guessed.mean())


def _rows_of(seed: int, how: dict[str, Any]) -> tuple[float, float, float]:
    source = clinic("")
    own, public = sample(source, 120 + how["known"], seed)
    view = played(source, own, "vertical", options=how)()
    (claim,) = EmbeddingRegression().run(view, rng=Rng.root(seed))
    secret, context = own.inputs[how["known"] :], ScoreContext(inputs=source.inputs)
    said = claim.part("inputs", len(secret))
    assert said is not None
    usual = TABLE.encode(TABLE.decode(public.inputs).mode(0).values[None])
    guesses = (public.inputs[: len(secret)], usual.expand(len(secret), -1).contiguous())
    null = max(float(Cells().score(guess, secret, context=context).mean()) for guess in guesses)
    whole = float(RowsExact().score(said, secret, context=context).mean())
    return float(Cells().score(said, secret, context=context).mean()), whole, null


def _accuracy(how: dict[str, Any]) -> float:
    """Of the two networks on people who were not there, mean of three federations."""
    source, told = clinic(""), []
    for seed in range(3):
        own, others = sample(source, 120 + how["known"], seed)
        rng = Rng.root(seed)
        couple = Couple(own, Vertical(**how), rng=rng)
        for number in range(ROUNDS):
            couple.step(Vertical(**how), rng=rng.child(f"round/{number}"))
        told.append(couple.accuracy(Batch(inputs=others.inputs, labels=others.labels)))
    return float(np.mean(told))


def _words(options: dict[str, Any]) -> str:
    named = [f"{name} {value:g}" for name, value in options.items() if name in ("noise", "step")]
    return ", ".join(named) or "none"


def _print(setting: str, scores: list[tuple[float, float, float]], how: dict[str, Any]) -> None:
    values = np.array(scores)
    read = mean_interval(values[:, 0], rng=Rng.root(0))
    print(
        f"{setting} | {read.value:.2f} [{read.low:.2f}, {read.high:.2f}], {values[:, 1].mean():.2f} | "
        f"{values[:, 2].mean():.2f} | {_accuracy(how):.2f}",
        flush=True,
    )


def main() -> None:
    """Run one part."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("part", choices=["labels", "rows"])
    parser.add_argument("--runs", type=int, default=20)
    arguments = parser.parse_args()
    {"labels": labels, "rows": rows}[arguments.part](arguments.runs)


if __name__ == "__main__":
    main()
