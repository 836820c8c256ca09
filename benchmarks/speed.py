"""Cost of an iteration of Inverting Gradients, against a plain loop, and with victims in one batch.

``python -m benchmarks.speed {iteration,victims,quality} [--setting NAME …] [--device D] [--out FOLDER]``. The
plain loop is a straightforward implementation: one graph per restart, double backward, float32, a learning
rate that decays three times. Variants alternate in one process with one thread; medians of CPU seconds, or of
wall-clock seconds on a GPU. A setting with an existing file is not measured again.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor
from torch.func import functional_call
from torch.nn import functional as F

from glasshouse.attacks.base import Reconstruction
from glasshouse.attacks.inversion.inverting_gradients import InvertingGradients
from glasshouse.attacks.parts.labels import labels_of_each
from glasshouse.attacks.parts.matching.distance import objective
from glasshouse.attacks.parts.replica import Replica, replica
from glasshouse.attacks.parts.search.adam import Descent, adam, random_starts, roughness, stepwise
from glasshouse.attacks.parts.search.rows import with_labels
from glasshouse.data.sources import load as load_source
from glasshouse.errors import BadFile
from glasshouse.images import psnr
from glasshouse.models import build as models
from glasshouse.process import prepare_process
from glasshouse.rng import Rng
from glasshouse.tensors import copy_to
from glasshouse.transcript.threat import Threat
from glasshouse.transcript.view import RoundView, View
from glasshouse.wire import Architecture, Broadcast, Terms, Update

SHAPE, CLASSES = (3, 32, 32), 10


@dataclass(frozen=True)
class Setting:
    """A network, and the number of restarts."""

    model: str
    arguments: dict[str, Any]
    restarts: int


ITERATION: Final = {
    "ResNet-18, 8 restarts": Setting("resnet18", {"width": 64}, 8),
    "ConvNet 64, 8 restarts": Setting("convnet", {"width": 64}, 8),
    "ConvNet 8, 1 restart": Setting("convnet", {"width": 8}, 1),
    "ConvNet 8, 8 restarts": Setting("convnet", {"width": 8}, 8),
}
VICTIMS: Final = {
    "LeNet": Setting("lenet5", {}, 1),
    "ConvNet 8": Setting("convnet", {"width": 8}, 1),
    "ResNet-18, width 16": Setting("resnet18", {"width": 16}, 1),
}
PEER, OURS, HALF = "plain loop", "Glasshouse", "Glasshouse, bfloat16"
QUALITY: Final[dict[str, tuple[dict[str, Any], dict[str, Any]] | None]] = {
    PEER: None,
    OURS: ({}, {}),
    HALF: ({}, {"bf16": True}),
    f"{HALF}, racing": ({"race": True}, {"bf16": True}),
}
"""Settings of the search and of the attack; None: the plain loop."""
ALONE, TOGETHER = "one by one", "together"


def photographs(count: int, split: str) -> tuple[Tensor, Tensor]:
    """Images (N, 3, 32, 32) and labels: CIFAR-10 if available, else crops of scikit-learn's photographs."""
    try:
        source = load_source("cifar10")
    except BadFile:
        source = load_source("photos", resize=32)
    batch = source.split(split).batch(torch.arange(count))
    return batch.inputs, batch.labels % CLASSES


def observed(
    setting: Setting, count: int, *, split: str = "train", first: int = 0
) -> tuple[list[View], Tensor]:
    """The server's views of several clients with one image each, and the images."""
    architecture = Architecture.of(setting.model, SHAPE, CLASSES, setting.arguments)
    model = models.build(architecture, rng=Rng.root(1)).eval()
    inputs, labels = (part[first:] for part in photographs(first + count, split))
    broadcast = Broadcast(round=0, architecture=architecture, tensors=models.state(model))
    terms = Terms(
        protocol="fedsgd",
        architecture=architecture,
        sends="gradient",
        clients=count,
        cohort=count,
        batch_size=1,
    )
    views = []
    for client in range(count):
        loss = F.cross_entropy(model(inputs[client : client + 1]), labels[client : client + 1])
        slopes = torch.autograd.grad(loss, list(model.parameters()))
        tensors = dict(zip(dict(model.named_parameters()), slopes, strict=True))
        update = Update(round=0, client=client, kind="gradient", tensors=tensors, examples=1)
        one = RoundView(round=0, broadcast=broadcast, updates={client: update})
        views.append(View(terms=terms, threat=Threat(), rounds=(one,)))
    return views, inputs


def plain_loop(
    client: Replica, labels: Tensor, start: Tensor, *, iterations: int, tv: float
) -> tuple[Tensor, float]:
    """One restart of the plain loop: the last iterate (1, B, C, H, W), and its loss."""
    parameters = [p.detach().clone().requires_grad_() for p in client.model.parameters()]
    names = [name for name, _ in client.model.named_parameters()]
    target = [client.gradient()[name] for name in names]
    length = torch.stack([t.square().sum() for t in target]).sum().sqrt()
    low, high = client.box()
    x = start.clamp(low, high).clone().requires_grad_()
    optimizer = torch.optim.Adam([x], lr=0.1)
    value = torch.zeros(())
    for i in range(iterations):
        optimizer.param_groups[0]["lr"] = 0.1 * stepwise(i / iterations)
        logits = functional_call(
            client.model, dict(zip(names, parameters, strict=True)), (client.to_pixels(x[0]),)
        )
        loss = F.cross_entropy(logits, labels)
        slopes = torch.autograd.grad(loss, parameters, create_graph=True)
        dot, square = torch.zeros(()), torch.zeros(())
        for slope, wanted in zip(slopes, target, strict=True):
            dot = dot + (slope * wanted).sum()
            square = square + slope.square().sum()
        value = 1 - dot / square.sqrt() / length + tv * roughness(client, x)[0]
        (g,) = torch.autograd.grad(value, x)
        x.grad = g.sign()
        optimizer.step()
        with torch.no_grad():
            x.clamp_(low, high)
    return x.detach(), float(value.detach())


def attack_of(setting: Setting, *, iterations: int = 1, **how: Any) -> InvertingGradients:
    """The attack with its defaults."""
    search = Descent(restarts=setting.restarts, iterations=iterations, signed=True, **how.pop("search", {}))
    return InvertingGradients(search=search, **how)


def iterations_of(attack: InvertingGradients, views: list[View], count: int) -> Callable[[], object]:
    """A search of ``count`` iterations, for all restarts of all ``views`` in one batch."""
    clients = [replica(view, subject="benchmark") for view in views]
    rngs = [Rng.root(i) for i in range(len(views))]
    labels = torch.stack(labels_of_each(views, clients, rngs=rngs))
    start = random_starts(clients, attack.search, rngs=rngs)
    loss = attack.loss(views[0], clients[0], objective(*clients, distance=attack.kind, bf16=attack.bf16))
    search = replace(attack.search, iterations=count)
    every = labels.repeat_interleave(search.restarts, 0)
    return lambda: adam(with_labels(loss, every), start, search, onto=clients[0].onto(), rngs=rngs)


class Watch:
    """A timer: CPU seconds of this process; on a GPU, wall-clock seconds until it has finished."""

    def __init__(self, device: str) -> None:
        self.device = device

    def __call__(self, work: Callable[[], object]) -> float:
        gpu = self.device != "cpu"
        if gpu:
            torch.cuda.synchronize()
        clock = time.perf_counter if gpu else time.process_time
        start = clock()
        work()
        if gpu:
            torch.cuda.synchronize()
        return clock() - start


def alternate(ways: dict[str, Callable[[], object]], repeats: int, watch: Watch) -> dict[str, float]:
    """Median seconds of every variant; they alternate, and the first turn is a warm-up."""
    seconds: dict[str, list[float]] = {way: [] for way in ways}
    for turn in range(repeats + 1):
        for way, work in ways.items():
            spent = watch(work)
            if turn:
                seconds[way].append(spent)
    return {way: statistics.median(values) for way, values in seconds.items()}


def measure_iteration(setting: Setting, settings: argparse.Namespace) -> dict[str, float]:
    """Milliseconds per restart and iteration, by variant; one client."""
    views, _ = observed(setting, 1)
    views = [copy_to(view, settings.device) for view in views]
    client = replica(views[0], subject="benchmark")
    labels = labels_of_each(views, [client], rngs=[Rng.root(0)])[0]
    start = torch.randn((1, 1, *SHAPE), generator=Rng.root(0).torch()).to(settings.device)
    count = settings.iterations
    ways = {
        PEER: lambda: plain_loop(client, labels, start, iterations=count, tv=0.01),
        OURS: iterations_of(attack_of(setting), views, count),
        HALF: iterations_of(attack_of(setting, bf16=True), views, count),
    }
    median = alternate(ways, settings.repeats, Watch(settings.device))
    each = {way: 1 if way == PEER else setting.restarts for way in ways}
    return {way: 1000 * median[way] / count / each[way] for way in ways}


def measure_victims(setting: Setting, settings: argparse.Namespace) -> dict[str, float]:
    """Milliseconds per candidate and iteration: victims one by one, and in one batch, in both precisions."""
    views = [copy_to(view, settings.device) for view in observed(setting, settings.victims)[0]]
    ways: dict[str, Callable[[], object]] = {}
    count = settings.iterations
    for precision, attack in (("", attack_of(setting)), (", bfloat16", attack_of(setting, bf16=True))):
        singles = [iterations_of(attack, [view], count) for view in views]
        ways[ALONE + precision] = partial(_in_turn, singles)
        ways[TOGETHER + precision] = iterations_of(attack, views, count)
    median = alternate(ways, settings.repeats, Watch(settings.device))
    return {way: 1000 * seconds / count / len(views) for way, seconds in median.items()}


def _in_turn(works: list[Callable[[], object]]) -> None:
    for work in works:
        work()


def measure_quality(setting: Setting, settings: argparse.Namespace) -> dict[str, float]:
    """Seconds of whole searches from the same starts, and the mean PSNR of their results over images."""
    views, inputs = observed(setting, settings.victims, split=settings.split, first=settings.first)
    views = [copy_to(view, settings.device) for view in views]
    watch, count = Watch(settings.device), settings.iterations
    ways = [way for way in settings.ways if way != PEER or settings.split == "test"]
    seconds: dict[str, float] = dict.fromkeys(ways, 0.0)
    scores: dict[str, list[float]] = {way: [] for way in ways}
    found: list[Tensor] = []

    def plain(view: View, rng: Rng) -> None:
        client = replica(view, subject="benchmark")
        (labels,) = labels_of_each([view], [client], rngs=[rng])
        starts = random_starts([client], attack_of(setting).search, rngs=[rng])
        ends = [plain_loop(client, labels, x, iterations=count, tv=0.01) for x in starts.split(1)]
        best = min(ends, key=lambda end: end[1])[0]
        found.append(client.to_pixels(best[0]).clamp(0, 1).cpu())

    def ours(view: View, rng: Rng, way: str) -> None:
        search, how = QUALITY[way] or ({}, {})
        attack = attack_of(setting, iterations=count, search=search, **how)
        (claim,) = attack.run(view, rng=rng)
        assert isinstance(claim, Reconstruction)
        found.append(claim.inputs.cpu())

    for number, view in enumerate(views):
        rng = Rng.root(settings.first + number)
        for way in ways:
            work = partial(plain, view, rng) if QUALITY[way] is None else partial(ours, view, rng, way)
            seconds[way] += watch(work)
            scores[way].append(float(psnr(found.pop(), inputs[number : number + 1])))
    table = {}
    for way in ways:
        table[f"{way}: seconds"] = seconds[way]
        table[f"{way}: PSNR"] = statistics.mean(scores[way])
    return table


MODES: Final = {
    "iteration": (ITERATION, measure_iteration),
    "victims": (VICTIMS, measure_victims),
    "quality": (ITERATION, measure_quality),
}


def main() -> None:
    """Run the requested measurements; print a line per setting and variant, with the ratio to the first."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("mode", choices=MODES)
    parser.add_argument("--setting", nargs="*", default=[])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--iterations", type=int, default=10)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--victims", type=int, default=8)
    parser.add_argument("--first", type=int, default=0, help="number of the first image")
    parser.add_argument(
        "--split", default="test", help="train: to choose settings on, without the plain loop"
    )
    parser.add_argument("--ways", nargs="*", choices=QUALITY, default=list(QUALITY), help="of quality")
    parser.add_argument("--out", default="runs/speed")
    settings = parser.parse_args()
    prepare_process()
    known, measure = MODES[settings.mode]
    for name in settings.setting or known:
        parts = [settings.mode, settings.device, name.replace(" ", "-")]
        if settings.mode == "quality":
            parts += [settings.split, str(settings.first)]
        file = Path(settings.out) / f"{'-'.join(parts)}.json"
        if not file.is_file():
            table = measure(known[name], settings)
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(json.dumps({"setting": name, **vars(settings), "table": table}, indent=1))
        table = json.loads(file.read_text())["table"]
        first = next(iter(table.values()))
        for way, value in table.items():
            ratio = "" if way.endswith("PSNR") else f"{first / value:6.2f} ×"
            print(f"{name:24} {way:40} {value:10.2f} {ratio}", flush=True)


if __name__ == "__main__":
    main()
