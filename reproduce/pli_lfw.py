"""PLI on Labeled Faces in the Wild: scores on whole images and on the hidden half, and of the prior.

    python -m reproduce.pli_lfw run --out RUN [--device cuda] [--bfloat16] [--jobs 10] [--only fedmd 1]
    python -m reproduce.pli_lfw table --out RUN [--device cuda]

Both take ``--set KEY=VALUE`` like an audit. ``run`` simulates the preset ``pli-lfw`` with the models of all
parties on ``--device`` (records stay on the CPU), optionally with ``--bfloat16`` multiplication (half the
time on one core), and attacks each federation with ``--jobs`` inversion networks at a time, on the CPU;
``play`` and ``attack`` do one of the two. Finished pieces are kept. ``table``: shares with exact intervals
over people; gains over the attack's own prior image, paired by person.
"""

import argparse
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

import torch
from torch import Tensor

from glasshouse.attacks.base import ClassRepresentatives, PriorSamples
from glasshouse.audit.attacking.call import run_attack
from glasshouse.audit.attacking.claims import read_outcome
from glasshouse.audit.plan import Plan, attack_tasks, plan
from glasshouse.audit.scoring.read import gallery_of
from glasshouse.audit.simulation.group import simulate
from glasshouse.federation.learner import CHUNK, Learner, Loss
from glasshouse.metrics.attribution import Owner
from glasshouse.metrics.classes import (
    AttackAccuracy,
    ClassIdentification,
    SsimPrivate,
)
from glasshouse.metrics.gallery import Gallery, null_images
from glasshouse.metrics.statistics.interval import paired_gain
from glasshouse.metrics.statistics.shares import paired_share_gain, proportion_interval
from glasshouse.process import prepare_process
from glasshouse.rng import Rng
from glasshouse.scenario.load import load, write_resolved
from glasshouse.store import read_tensors
from glasshouse.truth.record import read_truth

METRICS = {
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
    plans = plan(load("pli-lfw", arguments.set), arguments.out.resolve())
    return [p for p in plans if set(arguments.only) <= set(map(str, p.cell.axes.values()))]


def run(arguments: argparse.Namespace) -> None:
    """Run the federations, then the attack on each."""
    prepare_process()
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    for planned in chosen(arguments):
        words = " ".join(map(str, planned.cell.axes.values()))
        (group,) = planned.groups
        Path(group.folder).mkdir(parents=True, exist_ok=True)
        write_resolved(planned.cell.scenario, Path(group.folder) / "scenario.toml")
        if arguments.do != "attack":
            started = time.time()
            with parties_on(arguments.device, bfloat16=arguments.bfloat16):
                simulate(group)
            print(f"{words}: federation {time.time() - started:.0f} s on the clock", flush=True)
        if arguments.do == "play":
            continue
        started = time.time()
        for task in attack_tasks(planned, "cpu"):
            more = f'{{"processes": {arguments.jobs}, ' if arguments.jobs > 1 else "{"
            run_attack(replace(task, arguments=more + task.arguments[1:]))
        print(f"{words}: attacks {time.time() - started:.0f} s on the clock", flush=True)


def gallery_on(folder: Path, device: str) -> Gallery:
    """The reference gallery of the class metrics, on ``device``."""
    gallery = gallery_of(read_tensors(folder / "truth" / "scoring.safetensors"), read_truth(folder / "truth"))
    assert gallery is not None
    names = ("people", "known", "public", "prior", "owners")
    return replace(gallery, **{name: getattr(gallery, name).to(device) for name in names})


def table(arguments: argparse.Namespace) -> None:
    """Print one row per cell, attack and metric."""
    print("| protocol, K | attack | metric | n | value | own prior | gain over it | strongest null |")
    print("|---|---|---|---|---|---|---|---|")
    for planned in chosen(arguments):
        (group,) = planned.groups
        folder = Path(group.folder)
        if not any(folder.glob("claims/*/roundrun/claims.json")):
            continue
        gallery = gallery_on(folder, arguments.device)
        words = ", ".join(map(str, planned.cell.axes.values()))
        for place in sorted(folder.glob("claims/*/roundrun")):
            claims = read_outcome(place).claims
            last = [c for c in claims if isinstance(c, ClassRepresentatives)][-1]
            priors = [c for c in claims if isinstance(c, PriorSamples)]
            print_rows(f"| {words} | {place.parent.name}", last, priors, gallery, arguments.device)


def print_rows(
    start: str, claim: ClassRepresentatives, priors: list[PriorSamples], gallery: Gallery, device: str
) -> None:
    """Print every metric of one claim."""
    labels = claim.labels.to(device)
    nulls = {n: x.to(device) for n, x in null_images(gallery, labels, None).items()}
    if priors:
        nulls["own prior"] = priors[-1].inputs.to(device)
    for name, metric in METRICS.items():
        values = metric.measure(claim.inputs.to(device), labels, gallery).double().cpu().numpy()
        each = {n: metric.measure(x, labels, gallery).double().cpu().numpy() for n, x in nulls.items()}
        share = metric.counts
        own = each.get("own prior")
        best = max(float(v.mean()) for v in each.values())
        if share:
            interval = proportion_interval(int(values.sum()), len(values))
            gain = None if own is None else paired_share_gain(values, own)
            number = f"{interval.value:.3f} [{interval.low:.3f}, {interval.high:.3f}]"
        else:
            gain = None if own is None else paired_gain(values, own, rng=Rng.root(0))
            number = f"{values.mean():.3f}"
        more = "" if gain is None else f"{gain.value:+.3f} [{gain.low:+.3f}, {gain.high:+.3f}]"
        prior = "" if own is None else f"{own.mean():.3f}"
        print(f"{start} | {name} | {len(values)} | {number} | {prior} | {more} | {best:.3f} |", flush=True)
    if claim.source is not None and int(gallery.owners.max()):
        hits = Owner().measure(claim.source.to(device), labels, gallery)
        interval = proportion_interval(int(hits.sum()), len(hits))
        named = f"{interval.value:.3f} [{interval.low:.3f}, {interval.high:.3f}]"
        print(f"{start} | owner | {len(hits)} | {named} | | | |")


def main() -> None:
    """Parse the command line and run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("do", choices=("run", "play", "attack", "table"))
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--bfloat16", action="store_true")
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--only", nargs="+", default=[], help="protocol, and number of clients")
    parser.add_argument("--set", action="append", default=[])
    arguments = parser.parse_args()
    (table if arguments.do == "table" else run)(arguments)


if __name__ == "__main__":
    main()
