"""What the check before training costs in a round, beside an epoch of 4,000 examples in batches of 32.

Part ``cost`` of ``python -m benchmarks.guard pursuit``: CPU milliseconds once ranges of honest models are
known, seconds of the first round, in which they are learnt, and the growth of the peak memory of the process
by all of it. Data are random, in the form of pictures, sentences and coded rows of a census: only time is
measured.
"""

import argparse
import copy
import resource
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import torch
from torch import Tensor, nn

from benchmarks.guard.networks import of_zoo
from glasshouse.data.sources import load
from glasshouse.guard.pursuit.examples import Own, train_loss
from glasshouse.guard.pursuit.inspect import HonestRanges, inspect_in_modes
from glasshouse.models import build as models
from glasshouse.rng import Rng
from glasshouse.wire import Architecture

EXAMPLES, BATCH, TIMES, STEPS = 4000, 32, 5, 10
COLUMNS: Final = 104


def pictures(count: int) -> Own:
    """Random pictures of 3 x 32 x 32 and ten classes."""
    return Own(inputs=torch.rand(count, 3, 32, 32), targets=torch.arange(count) % 10)


def rows(count: int) -> Own:
    """Six numbers and coded categories, as of a census, and two classes."""
    codes = (torch.rand(count, COLUMNS - 6) < 0.08).float()
    return Own(inputs=torch.cat([torch.randn(count, 6), codes], dim=1), targets=torch.arange(count) % 2)


def sentences(count: int) -> Own:
    """Built-in sentences, again and again."""
    part = load("sentences").splits["train"]
    batch = part.batch(torch.arange(count) % len(part))
    return Own(inputs=batch.inputs, targets=batch.labels)


def gpt() -> nn.Module:
    """Two layers of width 64."""
    source = load("sentences")
    told = Architecture(name="small_gpt", inputs=source.inputs, task=source.task, arguments={"width": 64})
    return models.build(told, rng=Rng.root(0))


def census_mlp() -> nn.Module:
    """Two hidden layers."""
    return nn.Sequential(nn.Linear(COLUMNS, 64), nn.ReLU(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 2))


NETWORKS: Mapping[str, tuple[Callable[[], nn.Module], Callable[[int], Own]]] = {
    "MLP on rows": (census_mlp, rows),
    "LeNet": (lambda: of_zoo("lenet5")((3, 32, 32), 10), pictures),
    "MLP of 512": (lambda: of_zoo("mlp", hidden=512)((3, 32, 32), 10), pictures),
    "small GPT": (gpt, sentences),
    "ResNet-18 of width 16": (lambda: of_zoo("resnet18", width=16)((3, 32, 32), 10), pictures),
}


def cost(_: argparse.Namespace, known: set[str]) -> Iterator[dict[str, Any]]:
    """One line per network."""
    for name, (make, draw) in NETWORKS.items():
        if name in known:
            continue
        torch.manual_seed(0)
        model, own = make().train(), draw(512)
        epoch = _epoch(copy.deepcopy(model), own)
        honest = HonestRanges.of(model, own)
        before = _peak()
        first = _seconds(lambda model=model, own=own, honest=honest: _check(model, own, honest))
        times = [
            _seconds(lambda model=model, own=own, honest=honest: _check(model, own, honest))
            for _ in range(TIMES)
        ]
        check = sorted(times)[TIMES // 2]
        yield {
            "name": name,
            "check_ms": round(1000 * check),
            "first_s": round(first, 1),
            "epoch_s": round(epoch, 1),
            "share": round(check / epoch, 3),
            "more_MiB": round(_peak() - before),
        }


def _check(model: nn.Module, own: Own, honest: HonestRanges) -> None:
    inspect_in_modes(model, own, honest=honest, modes=("train",))


def _epoch(model: nn.Module, own: Own) -> float:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def step() -> None:
        some: Tensor = torch.randint(len(own), (BATCH,))
        optimizer.zero_grad()
        torch.autograd.backward(train_loss(model, own[some]))
        optimizer.step()

    def steps() -> None:
        for _ in range(STEPS):
            step()

    step()
    return _seconds(steps) / STEPS * EXAMPLES / BATCH


def _seconds(what: Callable[[], object]) -> float:
    started = time.process_time()
    what()
    return time.process_time() - started


def _peak() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
