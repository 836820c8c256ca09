"""Cost of PLI: a step of the inversion network at J = 1,000, and class SSIM with cached statistics.

Run with ``python -m benchmarks.pli_speed``. One thread, alternating implementations, CPU seconds of this
process and wall-clock seconds. The baseline is Code 2 of the paper with torch's default Adam, and one call of
SSIM per candidate.
"""

import argparse
import statistics
import time
from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional as F

from glasshouse.attacks.logits.network import network
from glasshouse.images import ssim
from glasshouse.metrics.gallery import SsimTable
from glasshouse.process import prepare_process
from glasshouse.rng import Rng

CLASSES, BATCH, REPEATS = 1000, 8, 7


def plain() -> nn.Module:
    """Code 2 of the paper."""
    layers: list[nn.Module] = [nn.ConvTranspose2d(2 * CLASSES, 1024, 4), nn.BatchNorm2d(1024), nn.Tanh()]
    for before in (1024, 512, 256):
        layers += [nn.ConvTranspose2d(before, before // 2, 4, stride=2, padding=1)]
        layers += [nn.BatchNorm2d(before // 2), nn.Tanh()]
    return nn.Sequential(*layers, nn.ConvTranspose2d(128, 3, 4, stride=2, padding=1), nn.Tanh())


def stepper(
    net: nn.Module, vectors: torch.Tensor, images: torch.Tensor, *, fused: bool
) -> Callable[[], None]:
    """A function that runs one training step."""
    extra = {"fused": True} if fused else {}
    optimizer = torch.optim.Adam(net.parameters(), lr=3e-5, weight_decay=1e-4, **extra)

    def step() -> None:
        loss = F.mse_loss(net(vectors), images)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()

    return step


def in_turn(sides: dict[str, Callable[[], object]], repeats: int = REPEATS) -> dict[str, tuple[float, float]]:
    """Median CPU and wall-clock seconds of each implementation, after one warm-up call."""
    results: dict[str, list[tuple[float, float]]] = {name: [] for name in sides}
    for number in range(repeats + 1):
        for name, work in sides.items():
            cpu, wall = time.process_time(), time.perf_counter()
            work()
            if number:
                results[name].append((time.process_time() - cpu, time.perf_counter() - wall))
    return {
        n: (statistics.median(c for c, _ in t), statistics.median(w for _, w in t))
        for n, t in results.items()
    }


def main() -> None:
    """Print both tables."""
    argparse.ArgumentParser(description=__doc__).parse_args()
    prepare_process()
    draws = torch.Generator().manual_seed(0)
    vectors = torch.softmax(torch.randn(BATCH, 2 * CLASSES, generator=draws), 1)
    images = torch.rand(BATCH, 3, 64, 64, generator=draws) * 2 - 1
    ours = network(2 * CLASSES, (3, 64, 64), width=1024, rngs=[Rng.root(0)])
    show(
        f"one step of the inversion network, J = {CLASSES}, batch {BATCH}",
        in_turn(
            {
                "plain module": stepper(plain(), vectors[:, :, None, None], images, fused=False),
                "ours": stepper(ours, vectors[None], images[None], fused=True),  # one network
            }
        ),
    )
    means, claimed = torch.rand(300, 3, 64, 64, generator=draws), torch.rand(4, 3, 64, 64, generator=draws)
    table = SsimTable(means, data_range=1.0)
    show(
        "SSIM of 4 images with 300 class means",
        in_turn(
            {
                "one call each": lambda: [ssim(claimed, m.expand_as(claimed), data_range=1.0) for m in means],
                "cached statistics": lambda: table(claimed),
            },
            repeats=3,
        ),
    )


def show(title: str, times: dict[str, tuple[float, float]]) -> None:
    """Print one table."""
    base = next(iter(times.values()))
    print(title)
    for name, (cpu, wall) in times.items():
        print(
            f"  {name:18s} {cpu * 1e3:8.1f} ms CPU {wall * 1e3:8.1f} ms wall {base[0] / cpu:6.2f} × as fast"
        )


if __name__ == "__main__":
    main()
