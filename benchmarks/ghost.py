"""Eight restarts of gradient matching on ResNet-18: batched with ghost norms, against one after the other.

Run with ``python -m benchmarks.ghost``. One thread; variants alternate; median CPU seconds of this process
per restart and iteration (objective and its gradient with respect to the image). Then Inverting Gradients
runs in full from the same starts in float32 and in bfloat16, to compare its results; and each variant runs in
its own process to measure peak memory. The table is printed and stored in ``results/ghost.json``.
"""

import argparse
import json
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from glasshouse.attacks.base import Reconstruction
from glasshouse.attacks.inversion.inverting_gradients import InvertingGradients
from glasshouse.attacks.parts.matching.distance import Objective, objective
from glasshouse.attacks.parts.matching.plain import Plain
from glasshouse.attacks.parts.matching.transforms import Adaptation
from glasshouse.attacks.parts.replica import replica
from glasshouse.attacks.parts.search.adam import Descent
from glasshouse.data.named import folders
from glasshouse.images import psnr
from glasshouse.models import build as models
from glasshouse.process import prepare_process
from glasshouse.rng import Rng
from glasshouse.transcript.threat import Threat
from glasshouse.transcript.view import RoundView, View
from glasshouse.wire import Architecture, Broadcast, Terms, Update

SHAPE, CLASSES, RESTARTS = (3, 32, 32), 10, 8
PHOTOGRAPHS = next((p for root in folders() if (p := root / "cifar10_12k.npz").is_file()), None)
RESULTS = Path(__file__).parent / "results" / "ghost.json"
WAYS = ("one after the other", "batched, float32", "batched, bfloat16")


def private_image() -> tuple[Tensor, str]:
    """A training photograph (1, 3, 32, 32) if available, else smooth noise; and its description."""
    if PHOTOGRAPHS is not None:
        image = np.load(PHOTOGRAPHS)["train_images"][137]
        return torch.tensor(image).permute(2, 0, 1)[None].float() / 255, "CIFAR-10 train image 137"
    coarse = torch.rand((1, 3, 4, 4), generator=Rng.root(0).torch())
    return F.interpolate(coarse, size=SHAPE[1:], mode="bilinear"), "smooth noise (no CIFAR-10 here)"


def observed(width: int) -> tuple[View, Tensor, str]:
    """The server's view of one client with one image, the image, and its description."""
    architecture = Architecture.of("resnet18", SHAPE, CLASSES, {"width": width})
    model = models.build(architecture, rng=Rng.root(1)).eval()
    image, origin = private_image()
    gradients = torch.autograd.grad(
        F.cross_entropy(model(image), torch.tensor([3])), list(model.parameters())
    )
    tensors = dict(zip(dict(model.named_parameters()), gradients, strict=True))
    update = Update(round=0, client=0, kind="gradient", tensors=tensors, examples=1)
    broadcast = Broadcast(round=0, architecture=architecture, tensors=models.state(model))
    terms = Terms(
        protocol="fedsgd", architecture=architecture, sends="gradient", clients=1, cohort=1, batch_size=1
    )
    round_view = RoundView(round=0, broadcast=broadcast, updates={0: update})
    return View(terms=terms, threat=Threat(), rounds=(round_view,)), image, origin


def ways(view: View) -> dict[str, Objective]:
    """The same objective on each engine."""
    client = replica(view, subject="benchmark 'ghost'")
    target = client.gradient()
    plain = Plain(client.model, client.received, target)
    return {
        WAYS[0]: Objective(plain, [target], distance="cosine", adaptations=[Adaptation()]),
        WAYS[1]: objective(client, distance="cosine"),
        WAYS[2]: objective(client, distance="cosine", bf16=True),
    }


def one_iteration(way: str, distance: Objective, points: Tensor) -> Tensor:
    """Compute objective and gradient of all restarts, together or one by one; returns objectives (R,)."""
    items = []
    for part in points.split(1 if way == WAYS[0] else RESTARTS):
        inputs = part.clone().requires_grad_()
        values = distance(inputs, torch.full(part.shape[:2], 3))
        torch.autograd.grad(values.sum(), inputs)
        items.append(values.detach())
    return torch.cat(items)


def timed(work: Callable[[], Tensor]) -> tuple[float, Tensor]:
    """CPU seconds of this process, and the result."""
    start = time.process_time()
    result = work()
    return time.process_time() - start, result


def speed(view: View, repeats: int) -> dict[str, dict[str, float]]:
    """Milliseconds per restart and iteration, and the largest difference of objectives, by variant."""
    candidates = ways(view)
    seconds: dict[str, list[float]] = {way: [] for way in WAYS}
    apart = dict.fromkeys(WAYS, 0.0)
    for repeat in range(repeats + 1):
        points = torch.rand((RESTARTS, 1, *SHAPE), generator=Rng.root(repeat).torch())
        values: dict[str, Tensor] = {}
        for way, distance in candidates.items():
            result, values[way] = timed(lambda w=way, d=distance, p=points: one_iteration(w, d, p))
            if repeat:  # the first round warms up
                seconds[way].append(result)
            apart[way] = max(apart[way], float((values[way] - values[WAYS[0]]).abs().max()))
    return {
        way: {"ms": 1000 * statistics.median(seconds[way]) / RESTARTS, "apart": apart[way]} for way in WAYS
    }


def quality(view: View, image: Tensor, iterations: int) -> dict[str, float]:
    """PSNR of the full attack's claim, by precision."""
    table = {}
    for way, bf16 in ((WAYS[1], False), (WAYS[2], True)):
        attack = InvertingGradients(
            search=Descent(restarts=RESTARTS, iterations=iterations, signed=True), bf16=bf16
        )
        (claim,) = attack.run(view, rng=Rng.root(0))
        assert isinstance(claim, Reconstruction)
        table[way] = float(psnr(claim.inputs, image))
    return table


def peak_memory(way: str, width: int) -> float:
    """Peak memory in MiB of a separate process over two iterations."""
    command = [sys.executable, "-m", "benchmarks.ghost", "--memory", way, "--width", str(width)]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def own_peak() -> float:
    """Peak memory of this process in MiB. Not ``ru_maxrss``, which starts from the parent's on Linux."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) / 1024
    raise RuntimeError("no VmHWM in /proc/self/status: this benchmark needs Linux")


def report(settings: argparse.Namespace) -> None:
    """Measure everything; print and store the table."""
    view, image, origin = observed(settings.width)
    figures = speed(view, settings.repeats)
    ends = quality(view, image, settings.iterations)
    base = figures[WAYS[0]]["ms"]
    print(
        f"ResNet-18, width {settings.width}, {RESTARTS} restarts, {settings.repeats} repeats, one thread; "
        f"PSNR after {settings.iterations} iterations on {origin}"
    )
    print(f"{'':22}{'CPU ms':>8}{'times':>8}{'apart':>10}{'PSNR dB':>9}{'peak MiB':>10}")
    for way in WAYS:
        row = figures[way]
        row["times"], row["peak_mib"] = base / row["ms"], peak_memory(way, settings.width)
        row |= {"psnr_db": ends[way]} if way in ends else {}
        result = f"{ends[way]:9.2f}" if way in ends else " " * 9
        print(
            f"{way:22}{row['ms']:8.1f}{row['times']:8.2f}{row['apart']:10.1e}{result}{row['peak_mib']:10.0f}"
        )
    about = {"torch": torch.__version__, "machine": platform.machine(), "image": origin, **vars(settings)}
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps({"about": about, "ways": figures}, indent=1) + "\n")


def main() -> None:
    """Parse the command line; with ``--memory``, run one variant and print this process's peak."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--iterations", type=int, default=60)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--memory", choices=WAYS, default=None)
    settings = parser.parse_args()
    prepare_process()
    if settings.memory is None:
        report(settings)
        return
    view, _, _ = observed(settings.width)
    distance = ways(view)[settings.memory]
    for seed in range(2):
        points = torch.rand((RESTARTS, 1, *SHAPE), generator=Rng.root(seed).torch())
        one_iteration(settings.memory, distance, points)
    print(own_peak())


if __name__ == "__main__":
    main()
