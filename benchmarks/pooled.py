"""A round of a secure sum: its clients one by one, and pooled.

``python -m benchmarks.pooled [--clients 8] [--repeats 5]``: FedSGD with random pictures of 3 × 32 × 32, one
thread, the ways in turns, medians of CPU seconds. Prints a line for each network and number of pictures.
"""

import argparse
import itertools
import json
import statistics
import time
from collections.abc import Callable

import torch

from glasshouse.federation.rounds import Clients, requests_to
from glasshouse.federation.setting import Setting
from glasshouse.models import build as models
from glasshouse.process import prepare_process
from glasshouse.rng import Rng
from glasshouse.wire import Architecture, Batch, Terms

SHAPE = (3, 32, 32)


def setting_of(model: str, clients: int, size: int) -> Setting:
    """A federation whose clients have one batch of random pictures each."""
    rng, agreed = Rng.root(0), Architecture.of(model, SHAPE, 10)
    draws, total = rng.torch(), clients * size
    return Setting(
        terms=Terms(
            protocol="fedsgd", architecture=agreed, sends="gradient", clients=clients, cohort=clients,
            batch_size=size, secure_sum=True,
        ),
        rounds=1,
        private=Batch(
            inputs=torch.rand(total, *SHAPE, generator=draws),
            labels=torch.randint(10, (total,), generator=draws),
        ),
        shards=torch.arange(total).split(size),
        start=models.state(models.build(agreed, rng=rng)),
        build=models.build,
    )  # fmt: skip


def seconds(work: Callable[[], object]) -> float:
    """CPU seconds of one call."""
    started = time.process_time()
    work()
    return time.process_time() - started


def main() -> None:
    """Measure both ways in turns."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--repeats", type=int, default=5)
    arguments = parser.parse_args()
    prepare_process()
    for model, size in itertools.product(("scale_mia_cnn", "lenet5"), (1, 8, 32, 128)):
        setting = setting_of(model, arguments.clients, size)
        clients = Clients(setting)
        asked = range(arguments.clients)
        requests = requests_to(asked, setting, 0, setting.start, None, rng=Rng.root(1))
        pool = clients.pool
        assert pool is not None
        assert pool.takes(requests)
        ways: dict[str, Callable[[], object]] = {
            "one by one": lambda: list(clients.answers(requests)),  # noqa: B023 - called in this turn
            "pooled": lambda: list(pool.sums(requests)),  # noqa: B023
        }
        taken: dict[str, list[float]] = {way: [] for way in ways}
        for _ in range(arguments.repeats + 1):  # the first is left out
            for way, work in ways.items():
                taken[way].append(seconds(work))
        medians = {way: statistics.median(every[1:]) for way, every in taken.items()}
        ratio = medians["one by one"] / medians["pooled"]
        print(json.dumps({"model": model, "pictures": size, **medians, "ratio": round(ratio, 2)}), flush=True)


if __name__ == "__main__":
    main()
