"""Gradient inversion at full width: the victims of many cells as rows of one batch on a GPU.

    python -m benchmarks.inversion_rows run PRESET --out RUN --device cuda [--only TEXT] [--set PATH=VALUE]
    python -m benchmarks.inversion_rows table PRESET --out RUN
    glasshouse audit PRESET --out RUN [--set PATH=VALUE ...]

``run`` plays a preset's federations and files the claims of inverting_gradients and gradinversion. All
victims that were sent the same weights are searched in one batch: only their targets differ. Labels, starts,
adaptations, the distance, Adam and the claims are the product's own; claims are those of one victim at a
time up to rounding, but that a search goes on until all rows of its batch have settled. A batch that was
filed is not searched again. ``table`` says at once what came out; ``glasshouse audit`` scores the claims.
"""

import argparse
import functools
import json
import os
import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from glasshouse.attacks.base import Reconstruction
from glasshouse.attacks.inversion.gradinversion.attack import GradInversion
from glasshouse.attacks.inversion.gradinversion.consensus import Group as Consensus
from glasshouse.attacks.inversion.inverting_gradients import InvertingGradients
from glasshouse.attacks.parts import detect
from glasshouse.attacks.parts.labels import known_labels
from glasshouse.attacks.parts.matching import ghost_layers, transforms
from glasshouse.attacks.parts.matching.exact import claim_images
from glasshouse.attacks.parts.matching.ghost import Ghost
from glasshouse.attacks.parts.matching.transforms import Adaptation
from glasshouse.attacks.parts.replica import Replica, replica
from glasshouse.attacks.parts.search.adam import Found, adam, random_start, roughness
from glasshouse.audit.attacking.call import AttackTask, adversary_side, stream_of, view_of
from glasshouse.audit.attacking.claims import Outcome, is_finished, read_outcome, write_outcome
from glasshouse.audit.attacking.device import copy_to
from glasshouse.audit.attacking.needs import attack_of
from glasshouse.audit.plan import Plan, attack_tasks, plan
from glasshouse.audit.simulation import pretraining
from glasshouse.audit.simulation.group import Group, simulate
from glasshouse.cache import digest
from glasshouse.images import psnr
from glasshouse.metrics.match import assign, mse_table
from glasshouse.models import fit as fitting
from glasshouse.process import each, prepare_process
from glasshouse.scenario.load import load, write_resolved
from glasshouse.truth.record import read_truth

Attack = InvertingGradients | GradInversion
POINTS = 64


@dataclass(frozen=True, kw_only=True, eq=False)
class Row:
    """One call of one attack, ready to be searched: what ``attack.run`` prepares before its loop."""

    task: AttackTask
    attack: Attack
    client: Replica
    labels: Tensor
    start: Tensor
    adaptation: Adaptation
    target: Mapping[str, Tensor]

    @property
    def twin(self) -> str:
        """Rows with the same twin are one search: adaptation that changes nothing is no adaptation."""
        a, squared = self.adaptation, isinstance(self.attack, GradInversion)
        scales = (self.attack.tv, *((a.clip, a.layer_clip, a.shortened) if squared else ()))
        return digest([dict(self.target), self.start, self.labels, dict(a.masks), list(map(str, scales))])


def prepare(task: AttackTask, same: Replica | None = None) -> Row:
    """What the attack's ``run`` does before its search, with the same streams.

    Args:
        task: the call.
        same: a replica of the same broadcast, whose tensors this one then shares.
    """
    attack = attack_of(task.attack, json.loads(task.arguments))
    assert isinstance(attack, Attack)
    view = copy_to(view_of(task, attack, adversary_side(task.folder)), task.device)
    client, rng = replica(view, subject="benchmark 'inversion_rows'"), stream_of(task)
    some_twice = client.images > client.classes
    minima = isinstance(attack, GradInversion) and not some_twice
    labels = known_labels(view, client, rng=rng.child("labels"), rule="minima" if minima else "sums")
    start = random_start(client, attack.search, rng=rng)
    found = detect.detect_adaptation(client, adaptive=attack.adaptive, rng=rng.child("detect"))
    target = client.gradient()
    if not isinstance(found, Adaptation):
        found = transforms.estimate(target, last=client.last_linear()) if found else Adaptation()
    if same is not None:
        assert all(torch.equal(same.received[n], t) for n, t in client.received.items())
        client = replace(client, model=same.model, received=same.received)
    return Row(
        task=task, attack=attack, client=client, labels=labels, start=start, adaptation=found, target=target
    )


class RowMoments:
    """Products and squares of every row's gradient with a target of its own: ``Ghost``'s tape, all formed."""

    def __init__(self, model: nn.Module, rows: Sequence[Row], *, bf16: bool) -> None:
        restarts = len(rows[0].start)
        self.bf16, names = bf16, list(rows[0].target)
        self.targets = {
            n: torch.stack([r.target[n].flatten() for r in rows]).repeat_interleave(restarts, 0)
            for n in names
        }
        masked = {n for r in rows for n in r.adaptation.masks}
        self.masks = {
            n: torch.stack([self._mask(r, n) for r in rows]).repeat_interleave(restarts, 0) for n in masked
        }
        self._ghost = Ghost(model, rows[0].target)

    @staticmethod
    def _mask(row: Row, name: str) -> Tensor:
        whole = torch.ones_like(row.target[name], dtype=torch.bool)
        mask = row.adaptation.masks.get(name)
        return (whole if mask is None else mask.expand_as(whole)).flatten()

    def __call__(self, pixels: Tensor, labels: Tensor, *, create_graph: bool = True) -> tuple[Tensor, Tensor]:
        """(R,) float64 each: product with the target, and own square."""
        rows, images = pixels.shape[:2]
        flat = pixels.flatten(0, 1)
        with torch.autocast(flat.device.type, dtype=torch.bfloat16) if self.bf16 else nullcontext():
            tape, logits = self._ghost._forward(flat)
            loss = F.cross_entropy(logits.float(), labels.flatten(), reduction="sum") / images
            outputs = [tape[name][1] for name, _ in self._ghost._layers]
            deltas = torch.autograd.grad(loss, outputs, create_graph=create_graph)
            dots, squares = [], []
            for (prefix, module), delta in zip(self._ghost._layers, deltas, strict=True):
                for own, _ in module.named_parameters(recurse=False):
                    name = f"{prefix}.{own}"
                    gradient = _gradient(module, own, tape[prefix][0], delta, rows).flatten(1).float()
                    if name in self.masks:
                        gradient = gradient * self.masks[name]
                    dots.append((gradient * self.targets[name]).sum(1).double())
                    squares.append(gradient.square().sum(1).double())
        return torch.stack(dots).sum(0), torch.stack(squares).sum(0)


def _gradient(module: nn.Module, own: str, activations: Tensor, delta: Tensor, rows: int) -> Tensor:
    """(R, ...) of one parameter. Convolutions by one product of matrices per row: GPUs like no groups."""
    if own == "bias":
        return ghost_layers.bias(module, delta, rows)
    if isinstance(module, nn.Conv2d):
        left = ghost_layers._gather(delta.flatten(2), rows)
        right = ghost_layers._gather(_Patches.apply(activations, module), rows)
        return left @ right.mT
    if isinstance(module, nn.Linear):
        left, right = ghost_layers.rows(module, activations, delta, rows)
        return left @ right.mT
    return ghost_layers.gain(module, activations, delta, rows)


class _Patches(torch.autograd.Function):
    """``F.unfold`` in a few kernels: torch's own starts one per image on a GPU. Differentiable once."""

    @staticmethod
    def forward(ctx: Any, activations: Tensor, module: nn.Conv2d) -> Tensor:
        ctx.module, ctx.size = module, activations.shape[2:]
        (down, across), (top, side) = module.stride, module.padding
        padded = F.pad(activations, (side, side, top, top))
        tall, wide = module.kernel_size
        height = (padded.shape[2] - tall) // down + 1
        width = (padded.shape[3] - wide) // across + 1
        parts = [
            padded[:, :, i : i + down * (height - 1) + 1 : down, j : j + across * (width - 1) + 1 : across]
            for i in range(tall)
            for j in range(wide)
        ]
        return torch.stack(parts, 2).flatten(3).flatten(1, 2)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        m = ctx.module
        return F.fold(grad, ctx.size, m.kernel_size, padding=m.padding, stride=m.stride), None


def batch_loss(rows: Sequence[Row]) -> Callable[[Tensor], Tensor]:
    """The attack's own loss of all rows (R, B, C, H, W) → (R,)."""
    first, restarts = rows[0], len(rows[0].start)
    attack, client = first.attack, first.client
    moments = RowMoments(client.model, rows, bf16=attack.bf16)
    labels = torch.stack([r.labels for r in rows]).repeat_interleave(restarts, 0)
    per_row = functools.partial(torch.tensor, dtype=torch.float64, device=client.device)
    norm = per_row([float(sum(t.double().square().sum() for t in r.target.values())) for r in rows])
    norm = norm.repeat_interleave(restarts)
    assert all(r.adaptation.layer_clip is None for r in rows)
    clips = [r.adaptation.clip for r in rows]
    clip = per_row([1e30 if c is None else c for c in clips]).repeat_interleave(restarts)
    short = per_row([float(r.adaptation.shortened) for r in rows]).repeat_interleave(restarts).bool()

    tv = per_row([r.attack.tv for r in rows]).repeat_interleave(restarts)

    def loss(points: Tensor) -> Tensor:
        dot, square = moments(client.to_pixels(points), labels)
        prior = tv * roughness(points)
        if isinstance(attack, InvertingGradients):
            return 1 - dot / (square.clamp_min(1e-30) * norm).sqrt() + prior
        scale = (clip / square.clamp_min(1e-24).sqrt()).clamp_max(1.0)
        scale = torch.where(short, (dot / square.clamp_min(1e-24)).clamp(0.0, 1.0), scale)
        distance = (scale.square() * square - 2 * scale * dot + norm) / norm
        return distance + prior + attack.l2 * points.square().flatten(1).mean(1)

    return loss


def consensus(rows: Sequence[Row]) -> Callable[[Tensor], Tensor] | None:
    """GradInversion's pull of each victim's seeds to their common image."""
    attack, seeds = rows[0].attack, len(rows[0].start)
    if not isinstance(attack, GradInversion) or not attack.group or seeds < 2:
        return None
    pulls = [Consensus(attack.group) for _ in rows]
    return lambda x: torch.cat([pull(part) for pull, part in zip(pulls, x.split(seeds), strict=True)])


def search(rows: Sequence[Row]) -> tuple[Found, list[Tensor], list[int]]:
    """Adam on all rows at once; the losses (R,) of some iterations beside."""
    first = rows[0]
    loss, every = batch_loss(rows), max(1, first.attack.search.iterations // POINTS)
    seen: list[Tensor] = []
    at: list[int] = []
    calls = iter(range(1 << 60))

    def noted(points: Tensor) -> Tensor:
        values = loss(points)
        if (i := next(calls)) % every == 0:
            seen.append(values.detach().double())
            at.append(i)
        return values

    start = torch.cat([r.start for r in rows])
    rng = stream_of(first.task)
    found = adam(noted, start, first.attack.search, box=first.client.box(), rng=rng, pull=consensus(rows))
    return found, seen, at


def file_rows(rows: Sequence[Row], twins: Mapping[str, list[Row]], begun: float) -> None:
    """Search and write one outcome per call, as ``run_attack`` would."""
    found, seen, at = search(rows)
    restarts = len(rows[0].start)
    spent = (time.time() - begun) / len(rows)
    for n, row in enumerate(rows):
        part = slice(n * restarts, (n + 1) * restarts)
        mine = Found(points=found.points[part], losses=found.losses[part])
        best = mine.best()
        low, high = row.client.terms.image_range
        pixels = row.client.to_pixels(mine.points[best]).clamp(low, high)
        claim = claim_images(row.client, pixels, row.labels, loss=float(mine.losses[best]))
        lowest = torch.stack([s[part] for s in seen]).min(1).values.cummin(0).values
        curve = tuple(zip(at, lowest.tolist(), strict=True))
        for twin in twins[row.twin]:
            outcome = Outcome(claims=(copy_to(claim, "cpu"),), seconds=spent, curve=curve)
            write_outcome(outcome, Path(twin.task.out))


def fit_on(device: str, *arguments: object, **named: object) -> list[float]:
    """``glasshouse.models.fit.fit`` on ``device``; the model comes back to the CPU."""
    model = arguments[0]
    assert isinstance(model, nn.Module)
    model.to(device)
    try:
        return fitting.fit(*arguments, **named)  # type: ignore[arg-type]  # as they came
    finally:
        model.cpu()


def play(plans: Sequence[Plan], device: str, jobs: int) -> None:
    """Every federation, on the CPU; pre-training on ``device``, once per model, then from the cache."""
    groups: list[Group] = []
    for planned in plans:
        for group in planned.groups:
            folder = Path(group.folder)
            folder.mkdir(parents=True, exist_ok=True)
            if not (folder / "scenario.toml").exists():
                write_resolved(planned.cell.scenario, folder / "scenario.toml")
            groups.append(group)
    models = {repr((p.cell.scenario.model, g.seed)): g for p in plans for g in p.groups}
    with patch.object(pretraining, "fit", functools.partial(fit_on, device)):
        for group in models.values():
            simulate(group)
    each(simulate, groups, processes=jobs, label="federations")


def run(arguments: argparse.Namespace) -> None:
    """Federations, then batches, the most wanted first."""
    prepare_process()
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    torch.backends.cudnn.benchmark = True
    started = time.time()
    plans = plan(load(arguments.preset, arguments.set), arguments.out.resolve())
    only = [
        p
        for p in plans
        if all(t in " ".join(map(str, p.cell.axes.values())) for t in arguments.only)
        and arguments.images in (0, p.cell.scenario.data.examples)
    ]
    play(only, arguments.device, arguments.jobs)
    print(f"{len(only)} federations, {time.time() - started:.0f} s", flush=True)
    batches: dict[tuple[str, ...], list[AttackTask]] = {}
    for planned in only:
        scenario = planned.cell.scenario
        for task in attack_tasks(planned, arguments.device):
            if task.attack not in arguments.attack or is_finished(Path(task.out)):
                continue
            attack = attack_of(task.attack, json.loads(task.arguments))
            assert isinstance(attack, Attack)
            how = repr(replace(attack, adaptive=False, tv=0.0))
            sent = (repr(scenario.model), str(scenario.seed), str(task.unit.rounds))
            batches.setdefault((f"{scenario.data.examples:04d}", how, *sent), []).append(task)
    for key in sorted(batches, key=lambda k: k[0]):  # few images first, then in the preset's order
        run_batch(batches[key], arguments.rows, started + arguments.seconds)
    print_table(only)


def run_batch(tasks: Sequence[AttackTask], most: int, until: float) -> None:
    """All calls that were sent the same weights, at most ``most`` images at a time."""
    if time.time() > until:
        return
    first = prepare(tasks[0])
    twins: dict[str, list[Row]] = {}
    for row in (first, *(prepare(task, first.client) for task in tasks[1:])):
        twins.setdefault(row.twin, []).append(row)
    left = [group[0] for group in twins.values()]
    each = len(first.start) * first.client.images
    size = max(1, most // each)
    while left and time.time() < until:
        begun, part = time.time(), left[:size]
        try:
            file_rows(part, twins, begun)
        except torch.OutOfMemoryError:
            torch.cuda.empty_cache()
            print(f"out of memory at {len(part) * each} images", flush=True)
            if size == 1:
                return
            size = (size + 1) // 2
            continue
        left = left[size:]
        print(
            f"{part[0].task.attack}: {len(part)} searches of {each} images, "
            f"{part[0].attack.search.iterations} iterations, {time.time() - begun:.0f} s",
            flush=True,
        )


def print_table(plans: Iterable[Plan]) -> None:
    """Cell and attack: n, PSNR, and the share of victims above 20 dB."""
    print("| setting | attack | n | median PSNR | mean PSNR | median loss |")
    print("|---|---|---|---|---|---|")
    for planned in plans:
        setting = ", ".join(map(str, planned.cell.axes.values()))
        for group in planned.groups:
            truth = read_truth(Path(group.folder) / "truth")
            for attack in sorted((Path(group.folder) / "claims").glob("*")):
                values, losses = [], []
                for claim in (c for u in sorted(attack.glob("*")) for c in read_outcome(u).claims):
                    assert isinstance(claim, Reconstruction)
                    batch, _ = truth.batch(claim.about.rounds[-1], claim.about.client)
                    pairs = assign(mse_table(batch.inputs, claim.inputs))
                    each = [
                        psnr(claim.inputs[c][None], batch.inputs[t][None])
                        for t, c in enumerate(pairs.tolist())
                    ]
                    values.append(statistics.mean(float(v) for v in each))
                    losses.append(-float(claim.confidence[0]))
                if values:
                    middle, mean = statistics.median(values), statistics.mean(values)
                    loss = statistics.median(losses)
                    print(
                        f"| {setting} | {attack.name} | {len(values)} | "
                        f"{middle:.2f} | {mean:.2f} | {loss:.4g} |"
                    )


def main() -> None:
    """Parse and do."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("do", choices=("run", "table"))
    parser.add_argument("preset")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--rows", type=int, default=240, help="images in one batch at most")
    parser.add_argument("--seconds", type=float, default=1e9, help="no new batch after so many seconds")
    parser.add_argument("--only", action="append", default=[], help="words that a cell's labels must hold")
    parser.add_argument("--images", type=int, default=0, help="only cells with so many per victim; 0: all")
    parser.add_argument("--attack", nargs="+", default=["inverting_gradients", "gradinversion"])
    parser.add_argument("--set", action="append", default=[])
    arguments = parser.parse_args()
    if arguments.do == "run":
        run(arguments)
    else:
        print_table(plan(load(arguments.preset, arguments.set), arguments.out.resolve()))


if __name__ == "__main__":
    main()
