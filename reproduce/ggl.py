"""How often GGL's detector names each defence: ``python -m reproduce.ggl``.

Images are CIFAR-10 photographs if available, else smooth noise. Reconstructions
against defences are in the presets ``ggl``, ``ggl-lfw`` and ``ggl-cifar``.
"""

import argparse
from collections import Counter
from collections.abc import Sequence

import numpy as np
import torch
from torch.nn import functional as F

from glasshouse.attacks.parts import detect
from glasshouse.attacks.parts.replica import Replica, replica
from glasshouse.data.named import folders
from glasshouse.metrics.statistics.shares import proportion_interval
from glasshouse.models import build as models
from glasshouse.process import prepare_process
from glasshouse.registry import load
from glasshouse.rng import Rng
from glasshouse.transcript.threat import Threat
from glasshouse.transcript.view import RoundView, View
from glasshouse.wire import Architecture, Batch, Broadcast, Terms, Update

SHAPE, CLASSES = (3, 32, 32), 10
PHOTOGRAPHS = next((p for root in folders() if (p := root / "cifar10_12k.npz").is_file()), None)
CHAINS: dict[str, list[tuple[str, dict[str, float]]]] = {
    "none": [],
    "gaussian_noise": [("gaussian_noise", {"std": 0.1})],
    "clip": [("clip", {"norm": 4.0})],
    "prune": [("prune", {"share": 0.9})],
    "soteria": [("soteria", {"share": 0.8})],
    "clip + gaussian_noise": [("clip", {"norm": 4.0}), ("gaussian_noise", {"std": 0.1})],
}
TENTH = {"std": 0.01, "norm": 40.0, "share": 0.1}
"""Ten times weaker: a tenth of the noise, ten times the bound; shares become 9 % and 8 % of everything."""


def photographs(count: int, *, first: int = 0) -> Batch:
    """Training photographs with their labels, or smooth noise."""
    if PHOTOGRAPHS is not None:
        with np.load(PHOTOGRAPHS) as archive:
            rows = slice(first * 10, None, max(1, 9000 // count))
            images, labels = archive["train_images"][rows][:count], archive["train_labels"][rows][:count]
        return Batch(
            inputs=torch.tensor(images).permute(0, 3, 1, 2).float() / 255,
            labels=torch.tensor(labels).long().flatten(),
        )
    draws = Rng.root(first).torch()
    coarse = torch.rand((count, 3, 4, 4), generator=draws)
    smooth = F.interpolate(coarse, size=SHAPE[1:], mode="bilinear")
    return Batch(inputs=smooth, labels=torch.randint(CLASSES, (count,), generator=draws))


def observed(
    name: str,
    width: int,
    victim: Batch,
    chain: Sequence[tuple[str, dict[str, float]]],
    *,
    kaiming: bool = False,
) -> Replica:
    """The server's view of one client with one image, under a chain of defences."""
    architecture = Architecture.of(name, SHAPE, CLASSES, {"width": width})
    model = models.build(architecture, rng=Rng.root(1)).eval()
    if kaiming:  # the authors' initialisation, whose gradients are larger
        draws = Rng.root(1).torch()
        for module in model.modules():
            if isinstance(module, torch.nn.Conv2d):
                torch.nn.init.kaiming_normal_(module.weight, mode="fan_out", generator=draws)
    gradients = torch.autograd.grad(
        F.cross_entropy(model(victim.inputs), victim.labels), list(model.parameters())
    )
    names = [n for n, _ in model.named_parameters()]
    update = Update(
        round=0, client=0, kind="gradient", tensors=dict(zip(names, gradients, strict=True)), examples=1
    )
    for defense_name, settings in chain:
        defense = load("defenses", defense_name)(**settings)
        stream = Rng.root(int(victim.inputs.sum() * 1e3)).child(defense_name)
        if defense.place == "gradient":
            update = defense.gradient(update, victim, model, rng=stream)
        else:
            update = defense.update(update, rng=stream)
    terms = Terms(
        protocol="fedsgd", architecture=architecture, sends="gradient", clients=1, cohort=1, batch_size=1
    )
    broadcast = Broadcast(round=0, architecture=architecture, tensors=models.state(model))
    view = View(
        terms=terms,
        threat=Threat(),
        rounds=(RoundView(round=0, broadcast=broadcast, updates={0: update}),),
    )
    return replica(view, subject="benchmark")


def detector(settings: argparse.Namespace) -> None:
    """How often the detector names each defence, at the paper's strengths and a tenth of them."""
    victims = photographs(settings.updates, first=1)  # thresholds were chosen on images from 0 on
    for weak in (False, True):
        for name, chain in CHAINS.items():
            if settings.defences and name not in settings.defences:
                continue
            used = [(n, {k: _weak(k, v) if weak else v for k, v in s.items()}) for n, s in chain]
            table: Counter[str] = Counter()
            idle = 0
            for i in range(len(victims)):
                victim = victims.pick(torch.tensor([i]))
                client = observed("convnet", 8, victim, used, kaiming=True)
                if used and unchanged(client, observed("convnet", 8, victim, [], kaiming=True)):
                    idle += 1
                    continue
                table[detect.detect(client, rng=Rng.root(i)).name] += 1
            share, right = table.total(), table[name]
            exact = proportion_interval(right, share) if share else None
            low, high = (exact.low, exact.high) if exact else (0.0, 1.0)
            words = ", ".join(f"{what} {count}" for what, count in table.most_common())
            print(
                f"{'a tenth of ' if weak else ''}{name}: {right} of {share} right [{low:.2f}, {high:.2f}] "
                f"({words or 'none'}); {idle} more updates that it left as they were",
                flush=True,
            )


def unchanged(one: Replica, other: Replica) -> bool:
    """Whether both updates are equal."""
    return all(torch.equal(t, other.update.tensors[n]) for n, t in one.update.tensors.items())


def _weak(name: str, value: float) -> float:
    return value * TENTH["share"] if name == "share" else TENTH[name]


def main() -> None:
    """Count what the detector names."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--defences", nargs="*", choices=list(CHAINS), help="all by default")
    parser.add_argument("--updates", type=int, default=200, help="updates per defence")
    settings = parser.parse_args()
    prepare_process()
    detector(settings)


if __name__ == "__main__":
    main()
