"""Compare the forecast of a short search with the result of a long one.

    python -m benchmarks.guard forecast --out runs/forecast            # test images: evaluation
    python -m benchmarks.guard forecast --split train --out runs/tune  # train images: tuning

A piece is one update: the gradient of one step of one client on CIFAR-10 images. Forecasts of several lengths
and rates are run, then a search of ``LONG`` iterations by the same attack. Its leakage is the mean PSNR of
the client's images above that of the null claim, the mean of 400 train images.
"""

import argparse
import json
import time
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.stats import spearmanr
from torch import Tensor, nn
from torch.nn import functional as F

from glasshouse.api.attack import attack, view
from glasshouse.api.forecast import ITERATIONS, TV, forecast_search
from glasshouse.attacks.base import Reconstruction
from glasshouse.data.sources import load as load_data
from glasshouse.guard.remedies import gradient_of
from glasshouse.images import psnr
from glasshouse.metrics.match import assign, mse_table
from glasshouse.models.build import build
from glasshouse.rng import Rng
from glasshouse.wire import Architecture, Batch

LONG = 20 * ITERATIONS
KNOWN = 400
LENGTHS = (20, 40)
NETWORKS: dict[str, tuple[str, dict[str, Any]]] = {
    "LeNet, sigmoid": ("lenet_sigmoid", {}),
    "LeNet, ReLU": ("lenet5", {}),
    "ConvNet 8": ("convnet", {"width": 8}),
    "ConvNet 16": ("convnet", {"width": 16}),
}
UPDATES = (
    *(("LeNet, sigmoid", steps, b, "none") for steps in (0, 200) for b in (1, 2, 4)),
    *(("LeNet, sigmoid", 0, b, d) for b, d in ((1, "noise"), (2, "noise"), (1, "pruned"), (2, "clipped"))),
    *(("LeNet, ReLU", steps, b, "none") for steps in (0, 200) for b in (1, 2, 4)),
    *(("LeNet, ReLU", 0, b, d) for b, d in ((1, "noise"), (1, "pruned"), (2, "clipped"))),
    *(("ConvNet 8", steps, b, "none") for steps in (0, 200) for b in (1, 2)),
    *(("ConvNet 8", 200, b, d) for b, d in ((4, "none"), (1, "noise"), (1, "pruned"), (1, "clipped"))),
    *(("ConvNet 16", steps, 1, "none") for steps in (0, 200)),
)
"""(network, training steps, batch size, defence)."""


@cache
def images(split: str, data: str) -> Batch:
    """All images of a split."""
    part = load_data(data).splits[split]
    return part.batch(torch.arange(len(part)))


def network(name: str, steps: int, seed: int, data: str) -> nn.Module:
    """A network, untrained or after ``steps`` steps on train images that no piece uses."""
    model, arguments = NETWORKS[name]
    architecture = Architecture.of(model, (3, 32, 32), 10, arguments)
    rng = Rng.root(seed, salt=f"{name} {steps}")
    net = build(architecture, rng=rng.child("model"))
    train, generator = images("train", data), rng.child("steps").torch()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
    for _ in range(steps):
        rows = torch.randint(KNOWN, len(train) // 2, (32,), generator=generator)
        optimizer.zero_grad()
        torch.autograd.backward(F.cross_entropy(net(train.inputs[rows]), train.labels[rows]))
        optimizer.step()
    return net.eval()


def defend(gradient: dict[str, Tensor], defense: str, generator: torch.Generator) -> dict[str, Tensor]:
    """The gradient after a client's own defence."""
    size = torch.cat([t.flatten() for t in gradient.values()]).square().mean().sqrt()
    if defense == "noise":
        return {n: t + 0.5 * size * torch.randn(t.shape, generator=generator) for n, t in gradient.items()}
    if defense == "pruned":
        return {n: torch.where(t.abs() < t.abs().quantile(0.9), 0, t) for n, t in gradient.items()}
    if defense == "clipped":
        return {n: t * 1e-2 for n, t in gradient.items()}
    return gradient


def long_gain(claimed: Tensor, private: Tensor, guess: Tensor) -> float:
    """Mean PSNR above that of ``guess``, dB."""
    found = claimed[torch.from_numpy(assign(mse_table(private, claimed)))]
    return float((psnr(found, private) - psnr(guess.expand_as(private), private)).mean())


@dataclass(frozen=True, kw_only=True)
class Sent:
    """One update of one client."""

    net: nn.Module
    private: tuple[Tensor, Tensor]
    update: dict[str, Tensor]
    seed: int

    @classmethod
    def by(cls, what: tuple[str, int, int, str], *, seed: int, split: str, data: str) -> "Sent":
        """The update described by an entry of ``UPDATES``."""
        name, steps, batch, defense = what
        net = network(name, steps, seed, data)
        rng = Rng.root(seed, salt=f"{name} {steps} {batch} {defense} {split}")
        pool = images(split, data)
        first = len(pool) // 2  # networks were trained on the first half of the train images
        rows = first + torch.randperm(len(pool) - first, generator=rng.child("deal").torch())[:batch]
        private = pool.inputs[rows], pool.labels[rows]
        update = defend(gradient_of(net, *private), defense, rng.child("noise").torch())
        return cls(net=net, private=private, update=update, seed=seed)

    def search(self, data: str) -> dict[str, Any]:
        """The result of a long search in dB, and its CPU seconds."""
        start = time.process_time()
        inputs, labels = self.private
        seen = view(
            self.net, self.update, input_shape=(3, 32, 32), examples=len(labels), labels=labels.tolist()
        )
        search = attack("inverting_gradients", tv=TV, search={"iterations": LONG, "restarts": 1})
        (claim,) = search(seen, seed=self.seed + 1000)
        assert isinstance(claim, Reconstruction)
        gain = long_gain(claim.inputs, inputs, images("train", data).inputs[:KNOWN].mean(0))
        return {"long": gain, "long, s": time.process_time() - start}

    def forecast(self) -> dict[str, Any]:
        """Forecasts of several lengths, and their CPU seconds."""
        short, seconds = {}, {}
        for length in LENGTHS:
            start = time.process_time()
            short[length] = forecast_search(
                self.update, self.net, self.private, iterations=length, seed=self.seed
            ).leak
            seconds[length] = time.process_time() - start
        return {"short": short, "short, s": seconds}


def correlation(pairs: list[tuple[float, float]], draws: int = 2000) -> str:
    """Spearman's correlation, with a bootstrap interval over updates."""
    values = np.array(pairs)
    if len(values) < 3:
        return "-"
    rng = np.random.default_rng(0)
    drawn = [
        spearmanr(*values[rng.integers(len(values), size=len(values))].T).statistic for _ in range(draws)
    ]
    low, high = np.nanquantile(drawn, [0.025, 0.975])
    return f"{spearmanr(*values.T).statistic:.3f} [{low:.3f}, {high:.3f}]"


def table(rows: list[dict[str, Any]]) -> str:
    """The results as a Markdown table."""
    lines = [
        "| iterations | rank correlation | within LeNets | within ConvNets | CPU s, median |",
        "|---|---|---|---|---|",
    ]
    for length in rows[0]["short"]:
        every = [(r["short"][length], r["long"]) for r in rows]
        kinds = [
            correlation([p for p, r in zip(every, rows, strict=True) if r["network"].startswith(kind)])
            for kind in ("LeNet", "ConvNet")
        ]
        median = np.median([r["short, s"][length] for r in rows])
        lines.append(f"| {length} | {correlation(every)} | {' | '.join(kinds)} | {median:.1f} |")
    spent = sum(r["long, s"] + sum(r["short, s"].values()) for r in rows)
    lines += [
        f"\n{len(rows)} updates, {spent:.0f} CPU seconds; the long search has {LONG} iterations.\n",
        f"| network | steps | batch | defence | forecast ({ITERATIONS}) | long search, dB over the mean |",
        "|---|---|---|---|---|---|",
    ]
    for r in sorted(rows, key=lambda r: -float(r["long"])):
        what = f"{r['network']} | {r['steps']} | {r['batch']} | {r['defense']}"
        lines.append(f"| {what} | {r['short'][str(ITERATIONS)]:.3f} | {r['long']:.1f} |")
    return "\n".join(lines)


def main() -> None:
    """Run missing pieces, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", default="cifar10")
    parser.add_argument("--split", default="test", choices=("train", "test"))
    parser.add_argument("--seeds", type=int, nargs="+", default=[1], help="0 tuned")
    parser.add_argument(
        "--updates", type=int, nargs="*", default=range(len(UPDATES)), help="numbers of the list"
    )
    parser.add_argument("--kinds", nargs="+", default=["long", "short"], choices=("long", "short"))
    parser.add_argument("--table", action="store_true", help="print what is there")
    parser.add_argument("--out", type=Path, default=Path("runs/forecast"))
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    chosen.out.mkdir(parents=True, exist_ok=True)
    for seed in chosen.seeds if not chosen.table else ():
        for number in chosen.updates:
            _run_piece(number, seed, chosen)
    print(table([_row(file) for file in sorted(chosen.out.glob("*.long.json"))]))


def _run_piece(number: int, seed: int, chosen: argparse.Namespace) -> None:
    """Compute the missing parts of one piece."""
    kinds = [kind for kind in chosen.kinds if not (chosen.out / f"{number:02d}.{seed}.{kind}.json").exists()]
    if not kinds:
        return
    sent = Sent.by(UPDATES[number], seed=seed, split=chosen.split, data=chosen.data)
    for kind in kinds:
        found = sent.search(chosen.data) if kind == "long" else sent.forecast()
        (chosen.out / f"{number:02d}.{seed}.{kind}.json").write_text(json.dumps(found))


def _row(file: Path) -> dict[str, Any]:
    """Forecast and search results of one update."""
    number, seed, *_ = file.name.split(".")
    other = file.with_name(f"{number}.{seed}.short.json")
    network_, steps, batch, defense = UPDATES[int(number)]
    what = {"network": network_, "steps": steps, "batch": batch, "defense": defense}
    return {**what, **json.loads(file.read_text()), **json.loads(other.read_text())}
