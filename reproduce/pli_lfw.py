"""TBI and PLI on Labeled Faces in the Wild, each beside itself without uploads.

    python -m reproduce.pli_lfw run --out RUN [--seed 0 2] [--only fedmd 1] [--attacks "PLI, ridge"]
    python -m reproduce.pli_lfw table --out RUN [RUN ...]

``run`` plays the federations of the preset ``pli-lfw`` and attacks each; ``play`` and ``attack`` do one of
the two. Finished pieces are kept. ``--only`` chooses cells by protocol and number of clients, ``--attacks``
attacks by label, ``--set KEY=VALUE`` changes the preset like an audit. ``--device`` and ``--bfloat16`` put
the models of all parties elsewhere and multiply in half precision (half the time on one core); ``--jobs`` is
the number of inversion networks at a time. ``table`` pools the seeds of each cell: shares with intervals over
people, and gains over the same attack without uploads, paired by person.
"""

import argparse
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from unittest.mock import patch

import numpy as np
import torch
from torch import Tensor

from glasshouse.attacks.base import ClassRepresentatives, PriorSamples
from glasshouse.audit.attacking.call import run_attack
from glasshouse.audit.attacking.claims import Outcome, read_outcome
from glasshouse.audit.plan import Plan, group_tasks, plan
from glasshouse.audit.scoring.read import gallery_of
from glasshouse.audit.scoring.tasks import attack_key
from glasshouse.audit.simulation.group import Group, simulate
from glasshouse.audit.simulation.record import read_record
from glasshouse.federation.learner import CHUNK, Learner, Loss
from glasshouse.metrics.attribution import Owner
from glasshouse.metrics.classes import (
    AttackAccuracy,
    ClassIdentification,
    ClassMetric,
    SsimPrivate,
)
from glasshouse.metrics.gallery import Gallery, null_images
from glasshouse.metrics.statistics.interval import paired_gain
from glasshouse.metrics.statistics.shares import paired_share_gain, share_interval
from glasshouse.metrics.statistics.units import Numbers
from glasshouse.process import prepare_process
from glasshouse.rng import Rng
from glasshouse.scenario.load import load, read_resolved, write_resolved
from glasshouse.scenario.table import Plugin
from glasshouse.store import read_tensors
from glasshouse.truth.record import read_truth

METRICS: dict[str, ClassMetric] = {
    "attack accuracy, hidden half": AttackAccuracy(),
    "attack accuracy, whole": AttackAccuracy(whole=True),
    "identified, hidden half": ClassIdentification(),
    "identified, whole": ClassIdentification(whole=True),
    "SSIM, hidden half": SsimPrivate(),
}


@contextmanager
def parties_on(device: str, *, bfloat16: bool) -> Iterator[None]:
    """Put every party's model on ``device``; data, losses and records stay on the CPU."""
    begin = Learner.__init__

    def answer(self: Learner, batch: Tensor) -> Tensor:
        with torch.autocast(device, torch.bfloat16, enabled=bfloat16):
            logits: Tensor = self.model(batch.to(device).contiguous(memory_format=torch.channels_last))
        return logits.float().cpu()

    def build(self: Learner, model: torch.nn.Module, **settings: float) -> None:
        begin(self, model.to(device), **settings)  # type: ignore[arg-type]  # as they came

    def fit(self: Learner, inputs: Tensor, loss: Loss, *, epochs: int, rng: Rng) -> tuple[Tensor, ...]:
        order: list[Tensor] = []
        for epoch in range(epochs):
            turn = torch.randperm(len(inputs), generator=rng.child(f"epoch/{epoch}").torch())
            order += list(torch.split(turn, self.batch_size))
        there = inputs.to(device)
        for rows in order:
            value = loss(answer(self, there[rows.to(device)]), rows)
            self._optimizer.zero_grad(set_to_none=True)
            value.backward()  # type: ignore[no-untyped-call]
            self._optimizer.step()
        return tuple(order)

    def logits(self: Learner, inputs: Tensor) -> Tensor:
        with torch.no_grad():
            return torch.cat([answer(self, part) for part in torch.split(inputs, CHUNK)])

    def state(self: Learner) -> dict[str, Tensor]:
        return {name: t.detach().cpu().clone() for name, t in self.model.state_dict().items()}

    with patch.multiple(Learner, __init__=build, fit=fit, logits=logits, state=state):
        yield


def chosen(arguments: argparse.Namespace) -> list[Plan]:
    """The requested cells."""
    seeds = f"audit.seeds={list(arguments.seed)}"
    plans = plan(load("pli-lfw", [*arguments.set, seeds]), arguments.out[0].resolve())
    return [p for p in plans if set(arguments.only) <= set(map(str, p.cell.axes.values()))]


def play(arguments: argparse.Namespace) -> None:
    """Play the federations."""
    for planned in chosen(arguments):
        for group in planned.groups:
            Path(group.folder).mkdir(parents=True, exist_ok=True)
            write_resolved(planned.cell.scenario, Path(group.folder) / "scenario.toml")
            started = time.time()
            with parties_on(arguments.device, bfloat16=arguments.bfloat16):
                simulate(group)
            print(f"{named(Path(group.folder))}: {time.time() - started:.0f} s on the clock", flush=True)


def attack(arguments: argparse.Namespace) -> None:
    """Attack every federation below ``out`` that was played."""
    attacks = load("pli-lfw", arguments.set).scenarios[0].attacks
    for folder in played(arguments):
        scenario = read_resolved(folder / "scenario.toml").model_copy(update={"attacks": attacks})
        record = read_record(folder)
        group = Group(folder=str(folder), seed=record.seed, active=record.active)
        for task in group_tasks(scenario, group, "cpu"):
            label = labels_of(attacks)[Path(task.out).parent.name]
            if arguments.attacks and label not in arguments.attacks:
                continue
            started = time.time()
            networks = arguments.jobs > 1 and task.attack == "pli"
            more = {"processes": arguments.jobs} if networks else {}
            plugin = task.plugin.model_copy(update={"arguments": {**task.plugin.arguments, **more}})
            run_attack(replace(task, plugin=plugin))
            print(f"{named(folder)}, {label}: {time.time() - started:.0f} s on the clock", flush=True)


def played(arguments: argparse.Namespace) -> list[Path]:
    """Folders of the federations that were played, of the requested protocols and numbers of clients."""
    markers = [marker for out in arguments.out for marker in sorted(out.glob("cells/*/group.json"))]
    folders = [marker.parent.resolve() for marker in markers]
    return [f for f in folders if set(arguments.only) <= set(named(f).split(" of seed")[0].split())]


def named(folder: Path) -> str:
    """Protocol, number of clients and seed of a federation: ``fedmd 10 of seed 0``."""
    federation = read_resolved(folder / "scenario.toml").federation
    return f"{federation.protocol} {federation.clients} of seed {folder.name.rsplit('-s', 1)[1]}"


def labels_of(attacks: Sequence[Plugin]) -> dict[str, str]:
    """Label of each attack by its folder."""
    return {attack_key(position, one): one.label or one.name for position, one in enumerate(attacks)}


def gallery_on(folder: Path, device: str) -> Gallery:
    """The reference gallery of the class metrics, on ``device``."""
    gallery = gallery_of(read_tensors(folder / "truth" / "scoring.safetensors"), read_truth(folder / "truth"))
    assert gallery is not None
    names = ("people", "known", "public", "prior", "owners")
    return replace(gallery, **{name: getattr(gallery, name).to(device) for name in names})


def table(arguments: argparse.Namespace) -> None:
    """Print one row per cell, attack and metric, over all seeds."""
    print(
        "| protocol, K | attack | metric | n, seeds | value | without uploads | gain over it | other null |"
    )
    print("|---|---|---|---|---|---|---|---|")
    rows: dict[tuple[str, str], list[dict[str, Row]]] = {}
    labels = labels_of(load("pli-lfw", arguments.set).scenarios[0].attacks)
    for folder in played(arguments):
        gallery = gallery_on(folder, arguments.device)
        for place in sorted(folder.glob("claims/*/roundrun")):
            cell = named(folder).split(" of seed")[0], labels.get(place.parent.name, place.parent.name)
            rows.setdefault(cell, []).append(scores(read_outcome(place), gallery, arguments.device))
    for (words, label), seeds in sorted(rows.items()):
        for name in seeds[0]:
            print_row(f"| {words} | {label} | {name}", METRICS.get(name), [one[name] for one in seeds])


@dataclass(frozen=True, eq=False)
class Row:
    """Per person of one federation: ids, scores with and without uploads, and of the best other null."""

    people: tuple[int, ...]
    values: Numbers
    without: Numbers
    best: Numbers


def scores(outcome: Outcome, gallery: Gallery, device: str) -> dict[str, Row]:
    """Every metric of the last claim, person by person; ``owner`` where there are several clients."""
    last, blind = (
        [c for c in claims if isinstance(c, ClassRepresentatives)][-1]
        for claims in (outcome.claims, outcome.uninformed)
    )
    priors = [c.inputs.to(device) for c in outcome.claims if isinstance(c, PriorSamples)]
    labels = last.labels.to(device)
    people = tuple(gallery.classes[label] for label in labels.tolist())
    images = {"with": last.inputs.to(device), "without": blind.inputs.to(device)}
    images |= null_images(gallery, labels, priors[-1] if priors else None)
    rows = {}
    for name, metric in METRICS.items():
        each = {n: metric.measure(x, labels, gallery).double().cpu().numpy() for n, x in images.items()}
        mine, without = each.pop("with"), each.pop("without")
        best = max(each.values(), key=lambda numbers: float(numbers.mean()))
        rows[name] = Row(people, mine, without, best)
    if int(gallery.owners.max()) and int(last.source.max()) >= 0:
        hits = [
            Owner().measure(c.source.to(device), labels, gallery).double().cpu().numpy()
            for c in (last, blind)
        ]
        chance = np.full(len(people), 1 / (int(gallery.owners.max()) + 1))
        rows["owner"] = Row(people, hits[0], hits[1], chance)
    return rows


def print_row(start: str, metric: ClassMetric | None, seeds: Sequence[Row]) -> None:
    """One metric over all seeds; a person who is private in several is one unit."""
    values, without, best = (
        np.concatenate([getattr(s, n) for s in seeds]) for n in ("values", "without", "best")
    )
    people = np.concatenate([s.people for s in seeds])
    count = f"{len(np.unique(people))}, {len(seeds)}"
    if metric is None or metric.counts:
        interval = share_interval(values, people)
        gain = paired_share_gain(values, without, people)
        number = f"{interval.value:.3f} [{interval.low:.3f}, {interval.high:.3f}]"
    else:
        each = [np.array([n[people == who].mean() for who in np.unique(people)]) for n in (values, without)]
        gain = paired_gain(*each, rng=Rng.root(0))
        number = f"{values.mean():.3f}"
    more = f"{gain.value:+.3f} [{gain.low:+.3f}, {gain.high:+.3f}]"
    print(f"{start} | {count} | {number} | {without.mean():.3f} | {more} | {best.mean():.3f} |", flush=True)


def main() -> None:
    """Parse the command line and run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("do", choices=("run", "play", "attack", "table"))
    parser.add_argument("--out", type=Path, nargs="+", required=True)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--bfloat16", action="store_true")
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--seed", type=int, nargs="+", default=[0])
    parser.add_argument("--only", nargs="+", default=[], help="protocol, and number of clients")
    parser.add_argument("--attacks", nargs="+", default=[], help="labels")
    parser.add_argument("--set", action="append", default=[])
    arguments = parser.parse_args()
    prepare_process()
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    steps = {"run": (play, attack), "play": (play,), "attack": (attack,), "table": (table,)}
    for step in steps[arguments.do]:
        step(arguments)


if __name__ == "__main__":
    main()
