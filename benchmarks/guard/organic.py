"""False alarms: rulings of the guard on thousands of honest models.

A piece is one client (its examples) with one architecture: it learns an honest range for each batch size once
and then receives models of several seeds, at several stages of training, each plain, in bfloat16, pruned,
quantised to 8 bits and fine-tuned. Each model is tested at every batch size, with the client's other examples
at hand where few of the batch make up an update; each combination counts as one broadcast. Pieces are JSON
files; existing ones are not run again.
"""

import argparse
import copy
import json
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import torch
from glasshouse.guard.behaviour.inspect import initialise_again
from glasshouse.guard.behaviour.modes import in_mode, inspect_each_mode, learn_honest_ranges
from scipy.stats import beta
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.guard.networks import NETWORKS
from glasshouse.data.sources import load
from glasshouse.errors import BadValue
from glasshouse.guard.inspect import inspect
from glasshouse.guard.preflight import preflight

BATCHES = (1, 8, 32, 64, 256, 512)
STAGES = (0, 3, 30, 300)
"""Training steps of the server after which a model is broadcast."""
OWN, SERVER = 512, 2000
"""Number of examples of the client, and of all others."""


@dataclass(frozen=True, kw_only=True)
class Piece:
    """One client that receives models of one architecture."""

    network: str
    data: str  # SOURCE@SPLIT
    batches: tuple[int, ...]
    seeds: range

    @property
    def name(self) -> str:
        """Name of its file."""
        source, _, split = self.data.partition("@")
        data = Path(source.partition(":")[2] or source).stem
        return f"{self.network}.{data}.{split or 'train'}.{self.seeds.start}-{self.seeds.stop}"


def halved(model: nn.Module) -> None:
    """Round weights to bfloat16."""
    for p in model.parameters():
        p.copy_(p.bfloat16().float())


def pruned(model: nn.Module) -> None:
    """Set the smaller half of each weight tensor's entries to zero."""
    for p in model.parameters():
        if p.ndim > 1:
            p[p.abs() < p.abs().median()] = 0


def quantised(model: nn.Module) -> None:
    """Quantise weights to 255 equal steps per tensor."""
    for p in model.parameters():
        step = p.abs().max() / 127
        p.copy_((p / step).round() * step if step > 0 else p)


VARIANTS: dict[str, Callable[[nn.Module], None]] = {"bf16": halved, "pruned": pruned, "int8": quantised}


def broadcasts(
    network: nn.Module, server: tuple[Tensor, Tensor], seeds: range
) -> Iterator[tuple[dict[str, object], nn.Module]]:
    """Models that an honest server may send, with their variants."""
    images, labels = server
    for seed in seeds:
        model = initialise_again(network, seed=seed)
        for stage, one in zip(STAGES, train(model, images, labels, stages=STAGES, seed=seed), strict=True):
            facts = {"seed": seed, "stage": stage}
            yield {**facts, "variant": "plain"}, one
            for name, change in VARIANTS.items():
                other = copy.deepcopy(one)
                with torch.no_grad():
                    change(other)
                yield {**facts, "variant": name}, other
            few = labels < max(2, int(labels.max() + 1) // 3)  # fine-tuned on some of the classes
            tuned = copy.deepcopy(one)
            *_, tuned = train(tuned, images[few], labels[few], stages=(20,), seed=seed + 1)
            yield {**facts, "variant": "fine-tuned"}, tuned


def train(
    model: nn.Module, images: Tensor, labels: Tensor, *, stages: tuple[int, ...], seed: int
) -> Iterator[nn.Module]:
    """The model after each stage; the seed selects the optimizer: Adam, or SGD with weight decay."""
    weights = [p for p in model.parameters() if p.requires_grad]
    optimizer: torch.optim.Optimizer = torch.optim.Adam(weights, lr=1e-3)
    if seed % 2:
        optimizer = torch.optim.SGD(weights, lr=0.05, momentum=0.9, weight_decay=5e-4)
    generator = torch.Generator().manual_seed(seed)
    for step in range(max(stages) + 1):
        if step in stages:
            yield model
        rows = torch.randint(len(images), (32,), generator=generator)
        optimizer.zero_grad()
        F.cross_entropy(model(images[rows]), labels[rows]).backward()
        torch.nn.utils.clip_grad_norm_(weights, 5.0)
        optimizer.step()


def standing(model: nn.Module, images: Tensor, labels: Tensor) -> tuple[int, int]:
    """Numbers of examples whose inputs, or features, are contained in this batch's gradient."""
    names, weights = zip(*((n, p) for n, p in model.named_parameters() if p.requires_grad), strict=True)
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)  # preflight's pass must use the same dropout mask
        loss = F.cross_entropy(model(images), labels)
    gradient = torch.autograd.grad(loss, weights, allow_unused=True)
    update = {n: g for n, g in zip(names, gradient, strict=True) if g is not None}
    seen = preflight(update, model, images, labels, kind="gradient")
    return len(seen.standing("input")), len(seen.standing("features"))


def run(piece: Piece, folder: Path) -> Path:
    """Run one piece, unless its file exists."""
    file = folder / f"{piece.name}.json"
    if file.exists():
        return file
    torch.set_num_threads(1)
    source, _, split = piece.data.partition("@")
    part = load(source).splits[split or "train"]
    order = torch.randperm(len(part), generator=torch.Generator().manual_seed(piece.seeds.start))
    batch = part.batch(order[: OWN + SERVER])
    images, labels = batch.inputs, batch.labels
    own, server = (images[:OWN], labels[:OWN]), (images[OWN:], labels[OWN:])
    start = time.process_time()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        network = NETWORKS[piece.network](tuple(images.shape[1:]), int(labels.max()) + 1)
        honest = {batch: learn_honest_ranges(network, *own, batch=batch) for batch in piece.batches}
        rows = []
        last: dict[object, dict[str, Tensor]] = {}
        for facts, model in broadcasts(network, server, piece.seeds):
            if not all(bool(t.isfinite().all()) for t in model.state_dict().values()):
                continue  # diverged: nobody would send such a model
            tensors = {name: t.clone() for name, t in model.state_dict().items()}
            rules = list(inspect(tensors).findings)
            known_honest, last[facts["variant"]] = last.get(facts["variant"]), tensors
            beside = list(inspect(tensors, reference=known_honest).findings) if known_honest else None
            for batch, known in honest.items():
                first = own[0][:batch], own[1][:batch]
                others = own[0][batch:], own[1][batch:]
                by_mode = inspect_each_mode(model, *first, honest=known, others=others)
                refused = [mode for mode, one in by_mode.items() if one.findings]
                mode = next(iter(refused or by_mode))
                seen = by_mode[mode]
                row = {
                    **facts,
                    "batch": batch,
                    "rules": rules,
                    "beside": beside,
                    "findings": list(seen.findings),
                }
                if seen.findings:
                    found = standing(in_mode(model, mode), *first)
                    row |= {"mode": mode, "standing": found, "values": seen.values}
                rows.append(row)
    facts = {"network": piece.network, "data": piece.data.partition(":")[0], "name": piece.name}
    cost = time.process_time() - start
    file.write_text(json.dumps({**facts, "cpu_seconds": cost, "broadcasts": rows}))
    return file


def pieces(networks: list[str], data: list[str], batches: list[int], seeds: range) -> list[Piece]:
    """All clients: networks are paired with data sets in rotation."""
    return [
        Piece(network=network, data=data[(place + turn) % len(data)], batches=tuple(batches), seeds=seeds)
        for turn in range(len(data))
        for place, network in enumerate(networks)
    ]


def run_all(todo: list[Piece], folder: Path, *, workers: int) -> None:
    """Run all pieces in separate processes."""
    folder.mkdir(parents=True, exist_ok=True)
    with ProcessPoolExecutor(workers) as pool:
        for future in [pool.submit(run, piece, folder) for piece in todo]:
            try:
                print(future.result().name, file=sys.stderr, flush=True)
            except (BadValue, RuntimeError) as error:  # the network does not support these images
                print(f"not run: {error}", file=sys.stderr, flush=True)


def table(folder: Path) -> str:
    """A Markdown table: alarms per architecture, with the exact 95 % upper bound."""
    lines = [
        "| architecture | broadcasts | runs | alarms | of these an example stands | rules alone |",
        "|---|---|---|---|---|---|",
    ]
    found = [json.loads(file.read_text()) for file in sorted(folder.glob("*.json"))]
    groups = [*dict.fromkeys(one["network"] for one in found), "all"]
    for group in groups:
        some = [one for one in found if group in (one["network"], "all")]
        rows = [row for one in some for row in one["broadcasts"]]
        runs = sum(len({row["seed"] for row in one["broadcasts"]}) for one in some)
        alarms = [row for row in rows if row["findings"]]
        true = sum(any(row["standing"]) for row in alarms)
        rules = sum(bool(row["rules"]) for row in rows)
        lines.append(f"| {group} | {len(rows)} | {runs} | {len(alarms)} | {true} | {rules} |")
    rows = [row for one in found for row in one["broadcasts"]]
    if rows:
        alarms = sum(bool(row["findings"]) for row in rows)
        high = float(beta.ppf(0.95, alarms + 1, len(rows) - alarms)) if alarms < len(rows) else 1.0
        lines.append(f"\nAlarms: {alarms} of {len(rows)}, upper bound {high:.1e} (95 %, if independent).")
    return "\n".join(lines)


def main() -> None:
    """Run missing pieces, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--networks", nargs="+", default=list(NETWORKS), choices=list(NETWORKS))
    parser.add_argument("--data", nargs="+", default=["digits"], help="SOURCE or SOURCE@SPLIT")
    parser.add_argument("--batches", nargs="+", type=int, default=list(BATCHES))
    parser.add_argument("--seeds", nargs=2, type=int, default=(1000, 1004), help="first, and behind the last")
    parser.add_argument("--out", type=Path, default=Path("runs/organic"))
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--table", action="store_true", help="run nothing")
    chosen = parser.parse_args()
    if not chosen.table:
        todo = pieces(chosen.networks, chosen.data, chosen.batches, range(*chosen.seeds))
        run_all(todo, chosen.out, workers=chosen.workers)
    print(table(chosen.out))
