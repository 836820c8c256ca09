"""docs/results/guard.md: rulings of guard and preflight on crafted and honest models.

    python -m benchmarks.guard crafted --data cifar10 --out benchmarks/results/guard.json

Crafted models of one architecture, with evasions, over disjoint batches: the number of examples contained in
the update (preflight), and whether the model is refused before training (behaviour, rules). Honest models of
several architectures, untrained and trained: alarms, and the number of examples contained in their updates.
"""

import argparse
import json
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from glasshouse.guard.behaviour.inspect import initialise_again, inspect_behaviour, learn_honest_range
from torch import Tensor, nn
from torch.nn import functional as F

from glasshouse.data.sources import load
from glasshouse.guard.inspect import inspect
from glasshouse.guard.preflight import preflight

BATCH, ROWS = 64, 512
OWN = slice(0, 256)
"""The client's examples, from which honest ranges are learnt."""
KNOWN = slice(256, 1024)
"""The server's examples."""


def mlp(inputs: Tensor, classes: int) -> nn.Sequential:
    """The attacked network."""
    return nn.Sequential(
        nn.Flatten(), nn.Linear(inputs[0].numel(), ROWS), nn.ReLU(), nn.Linear(ROWS, classes)
    )


def lenet(inputs: Tensor, classes: int) -> nn.Sequential:
    """A network of convolutions with sigmoids."""
    side = inputs.shape[2] // 4
    return nn.Sequential(
        nn.Conv2d(inputs.shape[1], 12, 5, padding=2, stride=2),
        nn.Sigmoid(),
        nn.Conv2d(12, 12, 5, padding=2, stride=2),
        nn.Sigmoid(),
        nn.Flatten(),
        nn.Linear(12 * side * side, classes),
    )


def vgg(inputs: Tensor, classes: int) -> nn.Sequential:
    """A network with batch normalisation and dropout."""
    side = inputs.shape[2] // 4
    return nn.Sequential(
        nn.Conv2d(inputs.shape[1], 16, 3, padding=1),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.BatchNorm2d(32),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(32 * side * side, 128),
        nn.ReLU(),
        nn.Dropout(0.5),
        nn.Linear(128, classes),
    )


def bins(model: nn.Sequential, known: Tensor, *, rows: int, noise: float, scaled: bool) -> None:
    """Robbing the Fed in ``rows`` of the agreed layer, along a direction with ``noise`` added."""
    first, last = model[1], model[3]
    direction = (1 + noise * torch.randn(first.in_features)) / first.in_features
    scales = torch.linspace(0.5, 3, rows) if scaled else torch.ones(rows)
    place = torch.randperm(ROWS)[:rows]
    thresholds = torch.quantile(known.flatten(1) @ direction, torch.linspace(0.005, 0.995, rows))
    first.weight[place], first.bias[place] = scales[:, None] * direction, -scales * thresholds
    last.weight[:, place] = torch.randn(last.out_features, 1) / scales


def crowded(model: nn.Sequential, known: Tensor, *, copies: int) -> None:
    """Like :func:`bins` with a noisy direction, but each threshold in several rows that differ by 0.1 %."""
    first, last = model[1], model[3]
    count = ROWS // copies
    place = torch.randperm(ROWS)[: count * copies]
    direction = (1 + 0.5 * torch.randn(first.in_features)) / first.in_features
    thresholds = torch.quantile(known.flatten(1) @ direction, torch.linspace(0.005, 0.995, count))
    first.weight[place] = direction * (1 + 1e-3 * torch.randn(len(place), first.in_features))
    first.bias[place] = -thresholds.repeat_interleave(copies)
    apart = 1 + 1e-3 * torch.randn(last.out_features, len(place))
    last.weight[:, place] = torch.randn(last.out_features, 1) * apart


def traps(model: nn.Sequential, *, scale: float) -> None:
    """Curious Abandon Honesty: half of each row negative, the other half scaled by ``scale``."""
    first = model[1]
    half = first.in_features // 2
    for row in first.weight:
        places, sizes = torch.randperm(2 * half), torch.randn(half).abs() / half
        row[places[:half]], row[places[half:]] = -sizes, scale * sizes[torch.randperm(half)]
    first.bias.zero_()


def fishing(model: nn.Sequential, *, bias: float) -> None:
    """Class fishing: all classes but one are certain, so that one class dominates the update."""
    last = model[3]
    others = torch.arange(last.out_features) != 3
    last.weight[others] *= 1e-3
    last.bias[others] = bias


CRAFTED: dict[str, Callable[[nn.Sequential, Tensor], None]] = {
    "bins, 512 rows": lambda m, k: bins(m, k, rows=512, noise=0, scaled=False),
    "bins, noise on the direction": lambda m, k: bins(m, k, rows=512, noise=0.5, scaled=False),
    "bins, rows scaled": lambda m, k: bins(m, k, rows=512, noise=0.5, scaled=True),
    "bins, 128 rows among honest ones": lambda m, k: bins(m, k, rows=128, noise=0.5, scaled=True),
    "bins, 64 rows among honest ones": lambda m, k: bins(m, k, rows=64, noise=0.5, scaled=True),
    "bins, 10 rows per threshold": lambda m, k: crowded(m, k, copies=10),
    "trap weights .90": lambda m, _: traps(m, scale=0.90),
    "trap weights .95": lambda m, _: traps(m, scale=0.95),
    "trap weights .98": lambda m, _: traps(m, scale=0.98),
    "class fishing": lambda m, _: fishing(m, bias=10),
    "class fishing, softened": lambda m, _: fishing(m, bias=3),
}


def judge(model: nn.Module, images: Tensor, labels: Tensor, honest: object) -> dict[str, object]:
    """One model and one batch: examples contained in the update, and which checks raise an alarm."""
    names, weights = zip(*model.named_parameters(), strict=True)
    gradient = torch.autograd.grad(F.cross_entropy(model(images), labels), weights)
    seen = preflight(dict(zip(names, gradient, strict=True)), model, images, labels, kind="gradient")
    found = inspect_behaviour(model, images, labels, honest=honest)
    return {
        "inputs": len(seen.standing("input")) / len(labels),
        "features": len(seen.standing("features")) / len(labels),
        "refused": bool(found.findings),
        "rules": bool(inspect(model.state_dict()).inspection.findings),
        **found.values,
    }


def trained(model: nn.Module, images: Tensor, labels: Tensor, steps: int) -> nn.Module:
    """``model`` after some steps of Adam on the server's data."""
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for _ in range(steps):
        rows = torch.randint(len(images), (BATCH,))
        optimizer.zero_grad()
        F.cross_entropy(model(images[rows]), labels[rows]).backward()
        optimizer.step()
    return model


def measure(images: Tensor, labels: Tensor, *, seeds: int, wanted: list[str]) -> Iterator[dict[str, object]]:
    """Yield all rows of the table."""
    classes = int(labels.max()) + 1
    for build in (build for build in (mlp, lenet, vgg) if build.__name__ in wanted):
        honest = learn_honest_range(build(images, classes), images[OWN], labels[OWN], batch=BATCH)
        for seed in range(seeds):
            torch.manual_seed(seed)
            batch = slice(seed % 4 * BATCH, (seed % 4 + 1) * BATCH)
            model = initialise_again(build(images, classes), seed=1000 + seed)
            for steps in (0, 5, 50, 200):
                row = judge(
                    trained(model, images[KNOWN], labels[KNOWN], steps), images[batch], labels[batch], honest
                )
                yield {"model": build.__name__, "kind": "honest", "steps": steps, "seed": seed, **row}
            for name, craft in CRAFTED.items() if build is mlp else ():
                model = initialise_again(build(images, classes), seed=seed)
                with torch.no_grad():
                    craft(model, images[KNOWN])
                row = judge(model, images[batch], labels[batch], honest)
                yield {"model": build.__name__, "kind": name, "seed": seed, **row}


def table(rows: list[dict[str, object]]) -> str:
    """A Markdown table: one row per attack and evasion, and per honest architecture."""
    lines = [
        "| model | n | inputs that stand, mean | largest | refused | by rules |",
        "|---|---|---|---|---|---|",
    ]
    for kind in dict.fromkeys((str(r["model"]), str(r["kind"])) for r in rows):
        some = [r for r in rows if (r["model"], r["kind"]) == kind]
        shares = [float(str(r["inputs"])) for r in some]
        counts = (sum(bool(r[key]) for r in some) for key in ("refused", "rules"))
        name = f"{kind[0]}, {kind[1]}"
        lines.append(
            f"| {name} | {len(some)} | {sum(shares) / len(some):.2f} | {max(shares):.2f} | "
            + " | ".join(str(count) for count in counts)
            + " |"
        )
    return "\n".join(lines)


def main() -> None:
    """Measure, store and print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", default="digits")
    parser.add_argument("--seeds", type=int, default=8)
    parser.add_argument("--models", nargs="+", default=["mlp", "lenet", "vgg"])
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/guard.json"))
    chosen = parser.parse_args()
    part = load(chosen.data).splits["train"]
    batch = part.batch(torch.randperm(len(part), generator=torch.Generator().manual_seed(0))[: KNOWN.stop])
    rows = list(measure(batch.inputs, batch.labels, seeds=chosen.seeds, wanted=chosen.models))
    chosen.out.write_text(json.dumps({"data": chosen.data.partition(":")[0], "rows": rows}, indent=1))
    print(table(rows))
