"""What inspection and preflight cost, in shares of a client's local epoch: CPU seconds and peak memory.

The client holds ``--examples`` pictures and trains one epoch in batches of 32. Inspection looks at 64 of
them, preflight at all; learning the honest range happens once per node and is listed apart.
"""

import argparse
import copy
import resource
import time
from collections.abc import Callable

import torch
from torch.nn import functional as F

from benchmarks.guard.networks import NETWORKS, of_zoo
from glasshouse.data.sources import load
from glasshouse.guard.behaviour.inspect import learn_honest_range, observe
from glasshouse.guard.inspect import inspect
from glasshouse.guard.preflight import preflight

FULL = {"lenet5": NETWORKS["lenet5"], "resnet18": of_zoo("resnet18")}


def measure(what: Callable[[], object]) -> tuple[float, float]:
    """CPU seconds, and by how many MiB the process's largest memory grew."""
    before, start = _peak(), time.process_time()
    what()
    return time.process_time() - start, _peak() - before


def _peak() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main() -> None:
    """Print one line per network."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", required=True)
    parser.add_argument("--networks", nargs="+", default=list(FULL), choices=list(FULL))
    parser.add_argument("--examples", type=int, default=5000)
    parser.add_argument("--range", action="store_true", help="also learn the honest range")
    chosen = parser.parse_args()
    part = load(chosen.data).splits["train"]
    batch = part.batch(torch.arange(min(chosen.examples, len(part))))
    images, labels = batch.inputs, batch.labels
    print("| network | examples | epoch, s | MiB | inspect | preflight | both | more MiB | range, once |")
    print("|---|---|---|---|---|---|---|---|---|")
    for name in chosen.networks:
        model = FULL[name](tuple(images.shape[1:]), 10)
        after = copy.deepcopy(model)

        def train(after: torch.nn.Module = after) -> None:
            optimizer = torch.optim.SGD(after.parameters(), lr=0.01)
            for rows in torch.randperm(len(images)).split(32):
                optimizer.zero_grad()
                F.cross_entropy(after(images[rows]), labels[rows]).backward()
                optimizer.step()

        epoch, used = measure(train)
        start = dict(model.named_parameters())
        change = {n: (p - start[n]).detach() for n, p in after.named_parameters()}
        start_time = time.process_time()
        if chosen.range:
            learn_honest_range(model, images[:256], labels[:256], batch=64)
        once = time.process_time() - start_time

        def look(model: torch.nn.Module = model) -> None:
            inspect(model.state_dict())
            observe(model, images[:64], labels[:64])

        seen, _ = measure(look)
        checked, more = measure(lambda model=model, change=change: preflight(change, model, images, labels))
        print(
            f"| {name} | {len(images)} | {epoch:.1f} | {used:.0f} | {seen / epoch:.1%} | "
            f"{checked / epoch:.1%} | {(seen + checked) / epoch:.1%} | {more:.0f} | {once / epoch:.1%} |",
            flush=True,
        )
