"""GGL benchmarks: candidates per second, optimisers at equal budgets, the detector, the loss landscape.

Run with ``python -m benchmarks.ggl [speed] [optimisers] [detector] [landscape]``; default: speed and the
detector. One thread, CPU seconds of this process. Images are CIFAR-10 photographs if available, else smooth
noise. Nothing here is scored by an audit: reconstructions against defences are in the presets ``ggl``,
``ggl-cifar`` and ``ggl-paper``.
"""

import argparse
import statistics
import time
from collections import Counter
from collections.abc import Sequence

import numpy as np
import torch
from scipy.stats import spearmanr
from torch import Tensor
from torch.nn import functional as F

from glasshouse.attacks.inversion.ggl.objective import Fit
from glasshouse.attacks.inversion.ggl.optimizers import minimize
from glasshouse.attacks.inversion.ggl.search import LatentSearch
from glasshouse.attacks.inversion.ggl.wgan import Generator, GeneratorTraining, train_generator
from glasshouse.attacks.parts import detect
from glasshouse.attacks.parts.matching.distance import Objective, objective
from glasshouse.attacks.parts.matching.plain import Plain
from glasshouse.attacks.parts.matching.transforms import Adaptation
from glasshouse.attacks.parts.replica import Replica, replica
from glasshouse.data.named import folders
from glasshouse.images import mse, psnr
from glasshouse.metrics.statistics.shares import proportion_interval
from glasshouse.models import build as models
from glasshouse.process import prepare_process
from glasshouse.registry import load
from glasshouse.rng import Rng
from glasshouse.transcript.threat import Threat
from glasshouse.transcript.view import RoundView, View
from glasshouse.wire import Architecture, Batch, Broadcast, Terms, Update

SHAPE, CLASSES, POPULATION, LATENT = (3, 32, 32), 10, 50, 128
SEARCHED = 32
"""Latent dimension for the optimisers: that of the reduced presets, not the paper's 128."""
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


def fit(
    client: Replica,
    prior: Generator,
    labels: Tensor,
    *,
    latent: int = LATENT,
    bf16: bool = False,
    adaptive: bool = True,
) -> Fit:
    """GGL's loss on one update."""
    result = detect.adaptation(detect.detect(client, rng=Rng.root(0)), client) if adaptive else Adaptation()
    return Fit(
        distance=objective(client, distance="squared", adaptive=result, bf16=bf16),
        prior=prior,
        labels=labels[None],
        latent=latent,
        scale=1.0 / len(client.update.tensors),
    )


def generator(steps: int) -> Generator:
    """A generator trained on 2,000 photographs, of the size used by the reduced presets."""
    training = GeneratorTraining(
        width=16,
        steps=steps,
        batch_size=32,
        critic_steps=2,
        learning_rate=1e-3,
        mirror=True,
    )
    return train_generator(photographs(2000), classes=CLASSES, latent=SEARCHED, training=training)


def ways(client: Replica, prior: Generator, labels: Tensor, *, latent: int) -> dict[str, Fit]:
    """GGL's loss: candidate by candidate with explicit gradients, and for a population at once."""
    plain = Plain(client.model, client.received, client.gradient())
    loop = Objective(plain, [client.gradient()], distance="squared", adaptations=[Adaptation()])
    return {
        "one after the other": Fit(distance=loop, prior=prior, labels=labels[None], latent=latent),
        "population, float32": fit(client, prior, labels, latent=latent),
        "population, bfloat16": fit(client, prior, labels, latent=latent, bf16=True),
    }


def speed(settings: argparse.Namespace) -> None:
    """Candidates per second of a population, against a loop over its candidates with explicit gradients.

    Timed with an untrained generator of ``--width``; ranks are compared with a trained one, among its samples
    and among points around the end of a search of 200 evaluations.
    """
    victim = photographs(1)
    client = observed("resnet18", settings.width, victim, [])
    prior = Generator(SHAPE, latent=LATENT, width=settings.width).eval().requires_grad_(False)
    points = torch.randn(POPULATION, LATENT, generator=Rng.root(0).torch())
    seconds: dict[str, list[float]] = {}
    for _ in range(settings.repeats):
        for way, loss in ways(client, prior, victim.labels, latent=LATENT).items():
            start = time.process_time()
            _values(loss, points, way)
            seconds.setdefault(way, []).append(time.process_time() - start)
    slow = statistics.median(seconds["one after the other"])
    for way, result in seconds.items():
        median = statistics.median(result)
        print(f"{way:22} {POPULATION / median:7.1f} candidates/s  {slow / median:5.2f} times the loop")
    losses = ways(client, generator(settings.training), victim.labels, latent=SEARCHED)
    search = LatentSearch(evaluations=200, population=20)
    ((best,),) = minimize(losses["population, float32"], search, rngs=[Rng.root(0)])
    spread = torch.randn(POPULATION, SEARCHED, generator=Rng.root(0).torch())
    for where, points in {"draws": spread, "end of a search": best.point + 0.2 * spread}.items():
        values = {way: _values(loss, points, way) for way, loss in losses.items()}
        for way in list(values)[1:]:
            rank = float(spearmanr(values[way], values["one after the other"]).statistic)
            print(f"{way:22} rank correlation with the loop, {where}: {rank:.3f}")


def _values(loss: Fit, points: Tensor, way: str) -> Tensor:
    parts = points.split(1) if way == "one after the other" else [points]
    return torch.cat([loss(part).detach() for part in parts])


def optimizers(settings: argparse.Namespace) -> None:
    """Adam, CMA-ES and TuRBO at equal budgets on one update: mean and range over seeds."""
    prior = generator(settings.training)
    victim = photographs(1, first=7)
    client = observed("convnet", 8, victim, [], kaiming=True)
    loss = fit(client, prior, victim.labels, latent=SEARCHED)
    for name in settings.among:
        scores, losses, start = [], [], time.process_time()
        for seed in range(settings.seeds):
            search = LatentSearch(optimizer=name, evaluations=settings.evaluations, population=20)
            ((best,),) = minimize(loss, search, rngs=[Rng.root(seed)])
            image = loss.images(best.point[None])[0].detach()
            scores.append([float(mse(image, victim.inputs)), float(psnr(image, victim.inputs))])
            losses.append(best.loss)
        mean, spread = np.mean(scores, 0), np.std(scores, 0, ddof=1 if settings.seeds > 1 else 0)
        print(
            f"{name:7} {settings.evaluations} evaluations, {settings.seeds} seeds: MSE-I {mean[0]:.4f} ± "
            f"{spread[0]:.4f}, PSNR {mean[1]:.2f} ± {spread[1]:.2f} dB "
            f"(on [-1, 1] at peak 1: {mean[1] - 6.02:.2f}), loss {np.mean(losses):.4g}, "
            f"{time.process_time() - start:.0f} s",
            flush=True,
        )


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


def landscape(settings: argparse.Namespace) -> None:
    """Loss along a random latent line through the private image, with and without the transformation T.

    The private image is itself a sample of the (trained) generator.
    """
    prior = generator(settings.training)
    centre, step = torch.randn(2, SEARCHED, generator=Rng.root(settings.seeds).torch())
    with torch.no_grad():
        victim = Batch(inputs=prior(centre[None], torch.zeros(1).long()), labels=torch.tensor([3]))
    offsets = torch.linspace(-1, 1, 9)
    print("defence, adaptation: loss above its minimum at offsets", [round(float(x), 2) for x in offsets])
    for name, chain in CHAINS.items():
        client = observed("convnet", 8, victim, chain, kaiming=True)
        for adaptive in (True, False):
            loss = fit(client, prior, victim.labels, latent=SEARCHED, adaptive=adaptive)
            values = loss(centre + offsets[:, None] * step).detach()
            print(f"{name}, {adaptive}:", [float(f"{x:.3g}") for x in values - values.min()])


WAYS = {"speed": speed, "optimisers": optimizers, "detector": detector, "landscape": landscape}


def main() -> None:
    """Run the named parts."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="*", choices=[*WAYS, []], default=["speed", "detector"])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--training", type=int, default=1500, help="critic steps of the generator")
    parser.add_argument("--evaluations", type=int, default=1000)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument(
        "--among", nargs="*", choices=["adam", "cma_es", "turbo"], default=["adam", "cma_es", "turbo"]
    )
    parser.add_argument(
        "--defences", nargs="*", choices=list(CHAINS), help="for the detector; all by default"
    )
    parser.add_argument("--updates", type=int, default=200, help="updates per defence for the detector")
    settings = parser.parse_args()
    prepare_process()
    for part in settings.parts:
        print(f"-- {part}", flush=True)
        WAYS[part](settings)


if __name__ == "__main__":
    main()
