"""GGL over draws of the network's first weights: ``python -m reproduce.ggl_networks --out FOLDER``.

Faces of Labeled Faces in the Wild: one generator, trained on 560 people; every network has people of its own,
one photograph each, who are neither in its training nor among those that settings were chosen on. Finished
attacks are kept in FOLDER and not run again. The preset ``ggl-lfw`` draws generators and data anew, too.

``--width`` makes the networks wider, ``--epochs`` trains them on the 560 people first, and ``--groups`` makes
classes of many people each, so that the label does not name the person.
"""

import argparse
import hashlib
import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from glasshouse.attacks.base import DefenseGuess, PriorSamples, Reconstruction
from glasshouse.attacks.inversion.ggl.attack import GGL
from glasshouse.attacks.inversion.ggl.search import LatentSearch
from glasshouse.attacks.inversion.ggl.wgan import GeneratorTraining
from glasshouse.audit.scoring.gains import gain_of, value_of
from glasshouse.audit.scoring.score import ScoredMetric
from glasshouse.data.sources import load as load_data
from glasshouse.metrics.reconstruction import Identification
from glasshouse.models import build as models
from glasshouse.process import prepare_process
from glasshouse.registry import load
from glasshouse.rng import Rng
from glasshouse.transcript.grants import Grants
from glasshouse.transcript.threat import Threat
from glasshouse.transcript.view import RoundView, View
from glasshouse.wire import Architecture, Batch, Broadcast, Terms, Update

CHAINS: Final[dict[str, list[tuple[str, dict[str, Any]]]]] = {
    "none": [],
    "noise": [("gaussian_noise", {"std": 0.1})],
    "clip": [("clip", {"norm": 4.0})],
    "prune": [("prune", {"share": 0.9})],
    "soteria": [("soteria", {"share": 0.8})],
    "perturbed": [("soteria", {"share": 0.8, "loss": "perturbed"})],
}
LATENT: Final = 64
SHAPE: Final = (3, 32, 32)
GENERATORS: Final = {
    "small": GeneratorTraining(
        width=16, steps=3000, batch_size=64, learning_rate=1e-3, critic_steps=2, mirror=True
    ),
    "preset": GeneratorTraining(
        width=32, steps=8000, batch_size=64, learning_rate=5e-4, critic_steps=2, mirror=True
    ),
}
"""How the generator is trained: cheaply, or as in the preset ``ggl-lfw``."""
EACH: Final = 8
"""People of one network."""
FIRST: Final = 2000
"""Seed of the first network."""


@dataclass(frozen=True, kw_only=True)
class Faces:
    """The photographs by role: what the adversary has, whom it attacks, who else an image could show."""

    auxiliary: Batch
    victims: Batch
    others: Tensor
    classes: int


def faces(*, groups: int = 0) -> Faces:
    """Deal people by a digest of their names: 130 to judge on, 70 to choose on, 40 others, 560 auxiliary.

    Args:
        groups: number of classes, over which people are dealt in turn; 0: every person is a class.
    """
    source = load_data("lfw", resize=32)
    whole, names = source.splits["train"].batch(), source.class_names
    order = sorted(range(len(names)), key=lambda i: hashlib.sha256(names[i].encode()).hexdigest())
    group = torch.empty(len(names), dtype=torch.long)
    group[torch.tensor(order)] = torch.arange(len(names)) % (groups or len(names))

    def classed(part: Batch) -> Batch:
        return Batch(inputs=part.inputs, labels=group[part.labels]) if groups else part

    def of(people: Sequence[int]) -> Batch:
        return whole.pick(torch.isin(whole.labels, torch.tensor(people)).nonzero().flatten())

    judged, held = order[:130], of(order[200:240])
    firsts = torch.tensor([int((whole.labels == person).nonzero()[0]) for person in judged])
    picked = torch.randperm(len(held), generator=Rng.root(9).torch())[:49]
    return Faces(
        auxiliary=classed(of(order[240:])),
        victims=classed(whole.pick(firsts)),
        others=held.inputs[picked],
        classes=groups or source.classes,
    )


def network_of(data: Faces, number: int, *, width: int, epochs: int) -> nn.Module:
    """One draw of the first weights, trained for ``epochs`` on the auxiliary people."""
    architecture = Architecture.of("convnet", SHAPE, data.classes, {"width": width, "batch_norm": False})
    rng = Rng.root(FIRST + number)
    model = models.build(architecture, rng=rng)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for epoch in range(epochs):
        order = torch.randperm(len(data.auxiliary), generator=rng.child(f"epoch/{epoch}").torch())
        for rows in torch.split(order, 64):
            batch = data.auxiliary.pick(rows)
            optimizer.zero_grad()
            F.cross_entropy(model(batch.inputs), batch.labels).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
    return model.eval()


def sent(data: Faces, victim: Batch, model: nn.Module, *, width: int, defence: str, stream: Rng) -> View:
    """What the server sees of a client with one photograph."""
    architecture = Architecture.of("convnet", SHAPE, data.classes, {"width": width, "batch_norm": False})
    slopes = torch.autograd.grad(
        F.cross_entropy(model(victim.inputs), victim.labels), list(model.parameters())
    )
    names = [name for name, _ in model.named_parameters()]
    tensors = dict(zip(names, slopes, strict=True))
    update = Update(round=0, client=0, kind="gradient", tensors=tensors, examples=1)
    for name, settings in CHAINS[defence]:
        plugin = load("defenses", name)(**settings)
        own = stream.child(name)
        if plugin.place == "gradient":
            update = plugin.gradient(update, victim, model, rng=own)
        else:
            update = plugin.update(update, rng=own)
    terms = Terms(
        protocol="fedsgd", architecture=architecture, sends="gradient", clients=1, cohort=1, batch_size=1
    )
    broadcast = Broadcast(round=0, architecture=architecture, tensors=models.state(model))
    seen = RoundView(round=0, broadcast=broadcast, updates={0: update})
    grants = Grants(auxiliary=data.auxiliary)
    return View(terms=terms, threat=Threat(), rounds=(seen,), grants=grants)


def attacked(
    data: Faces, attack: GGL, model: nn.Module, *, network: int, person: int, defence: str, width: int
) -> dict[str, Any]:
    """One attack: how many of 49 others are as near to its image as the victim, and to images of guesses."""
    victim = data.victims.pick(torch.tensor([network * EACH + person]))
    number = network * 100 + person
    stream = Rng.root(FIRST + number)
    view = sent(data, victim, model, width=width, defence=defence, stream=stream)
    started = time.process_time()
    claim, finding, draws = attack.run(view, rng=Rng.root(FIRST * 10 + number))
    assert isinstance(claim, Reconstruction)
    assert isinstance(finding, DefenseGuess)
    assert isinstance(draws, PriorSamples)

    def ahead(image: Tensor) -> int:
        own = (image - victim.inputs[0]).square().mean()
        return int(((data.others - image).square().flatten(1).mean(1) <= own).sum())

    error = float((claim.inputs[0] - victim.inputs[0]).square().mean())
    return {
        "defence": defence,
        "net": network,
        "i": person,
        "rank": ahead(claim.inputs[0]),
        "mean": ahead(data.auxiliary.inputs.mean(0)),
        "draws": [ahead(image) for image in draws.inputs[:8]],
        "named": f"{finding.name}{finding.parameters.get('loss', '')}",
        "psnr": -10 * float(np.log10(error)),
        "cpu": time.process_time() - started,
    }


def row(rows: Sequence[dict[str, Any]]) -> str:
    """Identified among 50, with networks and people as units, and the gain over the best guess."""
    guesses = {
        "chance": [0.02] * len(rows),
        "mean face": [float(one["mean"] == 0) for one in rows],
        "generator": [float(np.mean([draw == 0 for draw in one["draws"]])) for one in rows],
    }
    best = max(guesses, key=lambda name: float(np.mean(guesses[name])))
    scored = ScoredMetric(
        values=tuple(np.array([float(one["rank"] == 0)]) for one in rows),
        nulls=tuple(np.array([guess]) for guess in guesses[best]),
        drawn=tuple(np.array([str(one["net"])]) for one in rows),
        victims=tuple(f"{one['net']}/{one['i']}" for one in rows),
        baseline=best,
    )
    value = value_of(scored, Identification(), rng=Rng.root(0))
    gain = gain_of(scored, Identification(), rng=Rng.root(0))
    each = [
        float(np.mean([one["rank"] == 0 for one in rows if one["net"] == net]))
        for net in sorted({one["net"] for one in rows})
    ]
    named, against = sorted({one["named"] for one in rows}), float(np.mean(guesses[best]))
    return (
        f"{rows[0]['defence']} | {value.value:.2f} [{value.low:.2f}, {value.high:.2f}] of {value.n} | "
        f"{', '.join(f'{one:.2f}' for one in each)} | {best} {against:.2f}, gain "
        f"{gain.value:.2f} [{gain.low:.2f}, {gain.high:.2f}] | "
        f"PSNR {np.mean([one['psnr'] for one in rows]):.1f} dB | "
        f"named {', '.join(named)} | {np.mean([one['cpu'] for one in rows]):.1f} CPU s"
    )


def wanted(settings: argparse.Namespace) -> Iterator[tuple[str, int, int]]:
    """Defence, person and network of every attack: all networks come before the next person."""
    for defence in settings.defences:
        for person in range(settings.people):
            for network in range(settings.first, settings.first + settings.networks):
                yield defence, person, network


def main() -> None:
    """Attack what is not attacked yet, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="folder of the finished attacks")
    parser.add_argument("--defences", nargs="*", choices=list(CHAINS), default=list(CHAINS))
    parser.add_argument("--networks", type=int, default=8)
    parser.add_argument("--first", type=int, default=0, help="number of the first network, up to 15")
    parser.add_argument("--people", type=int, default=EACH, help="of each network, at most 8")
    parser.add_argument("--trials", type=int, default=1, help="of each attack; the mean image is claimed")
    parser.add_argument("--evaluations", type=int, default=600, help="of each trial")
    parser.add_argument("--generator", choices=list(GENERATORS), default="small")
    parser.add_argument("--width", type=int, default=8, help="of the networks")
    parser.add_argument("--epochs", type=int, default=0, help="of training on the auxiliary people")
    parser.add_argument("--bf16", action="store_true", help="bfloat16 in the candidates' networks")
    parser.add_argument("--groups", type=int, default=0, help="classes of people; 0: one class a person")
    settings = parser.parse_args()
    prepare_process()
    torch.set_num_threads(1)
    search = LatentSearch(population=24, evaluations=settings.evaluations, restarts=settings.trials)
    training = GENERATORS[settings.generator]
    attack = GGL(
        latent=LATENT,
        training=training,
        search=search,
        average=search.restarts > 1,
        restore=False,
        bf16=settings.bf16,
    )
    file: Path = settings.out / "attacks.jsonl"
    settings.out.mkdir(parents=True, exist_ok=True)
    lines = [json.loads(line) for line in file.read_text().splitlines()] if file.is_file() else []
    done = {(one["defence"], one["i"], one["net"]): one for one in lines}
    data: Faces | None = None
    trained: dict[int, nn.Module] = {}
    for key in wanted(settings):
        if key in done:
            continue
        defence, person, network = key
        data = faces(groups=settings.groups) if data is None else data
        if network not in trained:
            trained[network] = network_of(data, network, width=settings.width, epochs=settings.epochs)
        about = {"network": network, "person": person, "defence": defence, "width": settings.width}
        done[key] = attacked(data, attack, trained[network], **about)
        with file.open("a") as kept:
            kept.write(json.dumps(done[key]) + "\n")
    for defence in settings.defences:
        if rows := [done[key] for key in wanted(settings) if key[0] == defence and key in done]:
            print(row(rows))


if __name__ == "__main__":
    main()
