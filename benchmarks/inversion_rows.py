"""Gradient inversion at full width: the victims of all defences as rows of one batch on a GPU.

    python -m benchmarks.inversion_rows PLAN --out FOLDER [--device cuda] [--seconds 500]
    python -m benchmarks.inversion_rows table --out FOLDER

PLAN is a file of lines ``name {JSON of Piece}``, the name of one of the pieces below, or ``all``.
CIFAR-10: victims hold test images (tuning: train images); the network is trained on 8,000 train images or not
at all. Gradients are the clients', defences, labels, starts, adaptations, loss terms and Adam are the
product's own. All victims were sent the same weights, so that they are rows of one batch; what comes out is
what one victim at a time would give, up to rounding (TF32 on a GPU). Each piece is a file of FOLDER, written
as it ends, and is not run again. Losses of claims and truth are evaluated in float32.
"""

import argparse
import functools
import json
import statistics
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from glasshouse.attacks.inversion.gradinversion.attack import GradInversion
from glasshouse.attacks.inversion.gradinversion.consensus import Group as Consensus
from glasshouse.attacks.inversion.inverting_gradients import InvertingGradients
from glasshouse.attacks.parts import detect
from glasshouse.attacks.parts.labels import known_labels
from glasshouse.attacks.parts.matching import ghost_layers, transforms
from glasshouse.attacks.parts.matching.distance import ROUNDING
from glasshouse.attacks.parts.matching.ghost import Ghost
from glasshouse.attacks.parts.matching.transforms import Adaptation
from glasshouse.attacks.parts.replica import Replica, replica
from glasshouse.attacks.parts.search.adam import Descent, Found, adam, random_starts, roughness
from glasshouse.attacks.parts.search.rows import RowLoss, Rows
from glasshouse.data.base import DataSource
from glasshouse.data.sources import load as load_source
from glasshouse.federation.client import apply_defenses
from glasshouse.federation.defenses import soteria
from glasshouse.images import psnr, ssim
from glasshouse.interfaces import Defense
from glasshouse.metrics.base import ScoreContext
from glasshouse.metrics.match import assign, mse_table
from glasshouse.metrics.reconstruction import Identification
from glasshouse.metrics.statistics.interval import mean_interval, paired_gain
from glasshouse.metrics.statistics.shares import share_interval
from glasshouse.models import build as models
from glasshouse.models.fit import accuracy, fit
from glasshouse.process import prepare_process
from glasshouse.registry import create, load
from glasshouse.rng import Rng
from glasshouse.settings import Recipe
from glasshouse.transcript.threat import Threat
from glasshouse.transcript.view import RoundView, View
from glasshouse.wire import Architecture, Batch, Broadcast, Terms, Update

Attack = InvertingGradients | GradInversion
ATTACKS = {"inverting_gradients": InvertingGradients, "gradinversion": GradInversion}
ROOT = Rng.root(0, salt="inversion rows")
DISTRACTORS = 99
DEFENSES: dict[str, dict[str, Any]] = {
    "none": {},
    "gaussian_noise": {"std": 0.1},
    "clip": {"norm": 4.0},
    "prune": {"share": 0.9},
    "soteria": {"share": 0.8},
}


@dataclass(frozen=True, kw_only=True)
class Piece:
    """One table: a network, a batch size, an attack and its budget, over some defences.

    Attributes:
        model: registered network.
        width: its width.
        epochs: of its training on 8,000 public images; 0: untrained.
        images: of each victim.
        victims: n.
        attack: ``inverting_gradients`` or ``gradinversion``.
        iterations: of Adam.
        restarts: of each search.
        tv: weights of total variation; several: a tuning. Empty: the best of the tuning with the same
            network, batch size and attack, 0.01 without one.
        defenses: names in ``DEFENSES``.
        split: the victims' images.
    """

    model: str = "convnet"
    width: int = 64
    epochs: int = 0
    images: int = 1
    victims: int = 20
    attack: str = "inverting_gradients"
    iterations: int = 1200
    restarts: int = 1
    tv: tuple[float, ...] = ()
    defenses: tuple[str, ...] = tuple(DEFENSES)
    split: str = "test"


def _tune(**how: Any) -> Piece:
    tv = (0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3)
    return Piece(victims=8, iterations=400, tv=tv, defenses=("none",), split="train", **how)


ONE = {"defenses": ("none",)}
GI: dict[str, Any] = {"attack": "gradinversion"}
PLAN: dict[str, Piece] = {
    "tune-untrained-1": _tune(),
    "untrained-1": Piece(),
    "tune-trained-1": _tune(epochs=10),
    "trained-1": Piece(epochs=10),
    "width-8": Piece(width=8, iterations=600, **ONE),
    "width-16": Piece(width=16, iterations=600, **ONE),
    "width-32": Piece(width=32, iterations=600, **ONE),
    "width-64": Piece(iterations=600, **ONE),
    "iterations-150": Piece(iterations=150, **ONE),
    "iterations-2400": Piece(iterations=2400, **ONE),
    "restarts-4": Piece(iterations=600, restarts=4, **ONE),
    "restarts-8": Piece(iterations=600, restarts=8, **ONE),
    "tune-untrained-1-gi": _tune(**GI),
    "untrained-1-gi": Piece(**GI),
    "resnet-1": Piece(model="resnet18", victims=8, restarts=2, iterations=800),
    "untrained-4": Piece(images=4, iterations=600),
    "tune-trained-4": _tune(epochs=10, images=4),
    "trained-4": Piece(epochs=10, images=4, iterations=600),
    "trained-1-gi": Piece(epochs=10, **GI),
    "resnet-1-gi": Piece(model="resnet18", victims=8, restarts=2, iterations=800, **GI),
    "untrained-4-gi": Piece(images=4, iterations=600, **GI),
    "trained-4-gi": Piece(epochs=10, images=4, iterations=600, **GI),
}


@dataclass(frozen=True, kw_only=True, eq=False)
class Bench:
    """A network, and the images of everybody."""

    architecture: Architecture
    model: nn.Module
    private: Batch
    mean: Tensor
    distractors: Tensor
    accuracy: float


@functools.lru_cache(maxsize=1)
def pictures() -> DataSource:
    """CIFAR-10."""
    return load_source("cifar10")


def drawn(split: str, part: slice) -> Batch:
    """Images of a split in an order that is drawn once for all pieces."""
    images = pictures().splits[split]
    return images.batch(torch.randperm(len(images), generator=ROOT.child(split).torch())[part])


@functools.lru_cache(maxsize=4)
def network(model: str, width: int, epochs: int, device: str) -> tuple[Architecture, nn.Module, float]:
    """Fresh, or trained on 8,000 public images; and its accuracy on 1,000 test images."""
    place = Architecture(
        name=model, input_shape=pictures().input_shape, classes=10, arguments={"width": width}
    )
    net = models.build(place, rng=ROOT.child("model")).to(device)
    if epochs:
        recipe = Recipe(epochs=epochs, batch_size=64, learning_rate=0.05, flip=True, shift=2)
        public = drawn("train", slice(0, 8000))
        fit(net, replace(public, inputs=public.inputs.to(device)), recipe, rng=ROOT.child("training"))
    return place, net.eval(), accuracy(net, drawn("test", slice(500, 1500)))


def bench(piece: Piece, device: str) -> Bench:
    """The network and the images of a piece: the victims' are the last of their split."""
    place, net, share = network(piece.model, piece.width, piece.epochs, device)
    return Bench(
        architecture=place,
        model=net,
        private=drawn(piece.split, slice(-400, None)),
        mean=drawn("train", slice(8000, 9000)).inputs.mean(0),
        distractors=drawn("test", slice(0, DISTRACTORS)).inputs,
        accuracy=share,
    )


@dataclass(frozen=True, kw_only=True, eq=False)
class Row:
    """One call of one attack, ready to be searched: what ``attack.run`` prepares before its loop."""

    victim: int
    defense: str
    attack: Attack
    client: Replica
    batch: Batch
    labels: Tensor
    start: Tensor
    adaptation: Adaptation
    target: Mapping[str, Tensor]

    @property
    def twin(self) -> tuple[object, ...]:
        """Rows of a victim with the same twin are one search: adaptation that changes nothing is none."""
        a, squared = self.adaptation, isinstance(self.attack, GradInversion)
        scales = (a.clip, a.layer_clip, a.shortened) if squared else ()
        masks = tuple(sorted((n, int(m.sum())) for n, m in a.masks.items()))
        return (self.victim, self.defense, self.attack.tv, masks, tuple(self.labels.tolist()), *scales)


def updates_of(piece: Piece, base: Bench, device: str) -> Iterator[tuple[int, str, Batch, Update]]:
    """What each victim sends behind each defence."""
    names = list(dict(base.model.named_parameters()))
    for victim in range(piece.victims):
        rows = torch.arange(victim * piece.images, (victim + 1) * piece.images)
        batch = base.private.pick(rows)
        there = replace(batch, inputs=batch.inputs.to(device), labels=batch.labels.to(device))
        base.model.requires_grad_(True)
        loss = F.cross_entropy(base.model(there.inputs), there.labels)
        gradient = torch.autograd.grad(loss, list(base.model.parameters()))
        base.model.requires_grad_(False)
        tensors = dict(zip(names, gradient, strict=True))
        plain = Update(round=0, client=victim, kind="gradient", tensors=tensors, examples=piece.images)
        for name in piece.defenses:
            stream = ROOT.child(f"victim/{victim}/{name}")
            yield victim, name, batch, defended(plain, name, there, base.model, rng=stream, device=device)


def defended(update: Update, name: str, batch: Batch, model: nn.Module, *, rng: Rng, device: str) -> Update:
    """``update`` behind one defence: Soteria where the model is, the others on the CPU."""
    if name == "none":
        return update
    defense: Defense = create(load("defenses", name), DEFENSES[name])
    if name == "soteria":
        with patch.object(soteria, "_ROWS", 16 if device == "cpu" else 256):
            return apply_defenses(update, batch, model, (defense,), rng=rng)
    there = replace(update, tensors={n: t.cpu() for n, t in update.tensors.items()})
    sent = apply_defenses(there, batch, model, (defense,), rng=rng)
    return replace(sent, tensors={n: t.to(device) for n, t in sent.tensors.items()})


def prepare(piece: Piece, base: Bench, device: str) -> Iterator[Row]:
    """Plain and adaptive, for every victim, defence and weight of the prior."""
    tensors = {n: t.detach() for n, t in base.model.state_dict().items()}
    sent = Broadcast(round=0, architecture=base.architecture, tensors=tensors)
    terms = Terms(
        protocol="fedsgd", architecture=base.architecture, sends="gradient", clients=piece.victims,
        cohort=piece.victims, batch_size=piece.images,
    )  # fmt: skip
    first: Replica | None = None
    for victim, name, batch, update in updates_of(piece, base, device):
        seen = RoundView(round=0, broadcast=sent, updates={victim: update})
        view = View(terms=terms, threat=Threat(), rounds=(seen,))
        client = replica(view, subject="benchmark 'inversion_rows'")
        first = first or client
        client = replace(client, model=first.model, received=first.received)
        for adaptive in (False, True):
            for tv in piece.tv:
                search = replace(
                    ATTACKS[piece.attack]().search, iterations=piece.iterations, restarts=piece.restarts
                )
                attack = ATTACKS[piece.attack](search=search, tv=tv, adaptive=adaptive)
                yield row_of(victim, name, batch, view=view, client=client, attack=attack)


def row_of(victim: int, name: str, batch: Batch, *, view: View, client: Replica, attack: Attack) -> Row:
    """What the attack's ``run`` does before its search."""
    rng = ROOT.child(f"attack/{victim}")
    minima = isinstance(attack, GradInversion) and client.images <= client.classes
    labels = known_labels(view, client, rng=rng.child("labels"), rule="minima" if minima else "sums")
    found = detect.detect_adaptation(client, adaptive=attack.adaptive, rng=rng.child("detect"))
    target = client.gradient()
    if not isinstance(found, Adaptation):
        found = transforms.estimate(target, last=client.last_linear()) if found else Adaptation()
    return Row(
        victim=victim, defense=name, attack=attack, client=client, batch=batch, labels=labels,
        start=random_starts([client], attack.search, rngs=[rng]), adaptation=found, target=target,
    )  # fmt: skip


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
        self._ghost = Ghost(model, [rows[0].target])

    @staticmethod
    def _mask(row: Row, name: str) -> Tensor:
        whole = torch.ones_like(row.target[name], dtype=torch.bool)
        mask = row.adaptation.masks.get(name)
        return (whole if mask is None else mask.expand_as(whole)).flatten()

    def __call__(
        self, pixels: Tensor, labels: Tensor, which: Rows, *, create_graph: bool = True
    ) -> tuple[Tensor, Tensor]:
        """(R,) float64 each: product with the target, and own square."""
        rows, images = pixels.shape[:2]
        flat = pixels.flatten(0, 1)
        if not flat.requires_grad:
            flat = flat.detach().requires_grad_()
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
                        gradient = gradient * which.pick(self.masks[name])
                    dots.append((gradient * which.pick(self.targets[name])).sum(1).double())
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


def batch_loss(rows: Sequence[Row], *, create_graph: bool = True) -> RowLoss:
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

    def loss(points: Tensor, which: Rows) -> Tensor:
        pixels, given = client.to_pixels(points), which.pick(norm)
        dot, square = moments(pixels, which.pick(labels), which, create_graph=create_graph)
        prior = which.pick(tv) * roughness(points)
        if isinstance(attack, InvertingGradients):
            return 1 - dot / (square.clamp_min(1e-30) * given).sqrt() + prior
        scale = (which.pick(clip) / square.clamp_min(1e-24).sqrt()).clamp_max(1.0)
        scale = torch.where(which.pick(short), (dot / square.clamp_min(1e-24)).clamp(0.0, 1.0), scale)
        distance = (scale.square() * square - 2 * scale * dot + given) / given
        return distance + prior + attack.l2 * points.square().flatten(1).mean(1)

    return loss


def consensus(rows: Sequence[Row]) -> list[Consensus]:
    """GradInversion's pull of each victim's seeds to their common image."""
    attack, seeds = rows[0].attack, len(rows[0].start)
    if not isinstance(attack, GradInversion) or not attack.group or seeds < 2:
        return []
    return [Consensus(attack.group) for _ in rows]


def search(rows: Sequence[Row]) -> Found:
    """Adam on all rows at once."""
    first = rows[0]
    start = torch.cat([r.start for r in rows])
    how: Descent = first.attack.search
    return adam(
        batch_loss(rows),
        start,
        how,
        box=first.client.box(),
        rngs=[ROOT.child(f"attack/{row.victim}") for row in rows],
        pulls=consensus(rows),
    )


def judged(rows: Sequence[Row], base: Bench) -> Iterator[dict[str, Any]]:
    """Search, then what came out for each row."""
    found, restarts = search(rows), len(rows[0].start)
    best, pixels = [], []
    for n, row in enumerate(rows):
        part = slice(n * restarts, (n + 1) * restarts)
        best.append(n * restarts + Found(points=found.points[part], losses=found.losses[part]).best())
        low, high = row.client.terms.image_range
        pixels.append(row.client.to_pixels(found.points[best[-1]]).clamp(low, high))
    truth = [truth_in_place(row, x.cpu()) for row, x in zip(rows, pixels, strict=True)]
    alone = [replace(row, start=row.start[:1]) for row in rows]
    claimed = exact_losses(alone, torch.stack(pixels))
    known = exact_losses(alone, torch.stack(truth).to(pixels[0].device))
    context = ScoreContext(distractors=base.distractors)
    for row, image, loss, there in zip(rows, pixels, claimed, known, strict=True):
        claim, true = image.cpu(), row.batch.inputs
        pairs = torch.from_numpy(assign(mse_table(true, claim)))
        mean = base.mean.expand_as(true)
        labels, given = row.labels.bincount(minlength=10), row.batch.labels.bincount(minlength=10)
        yield {
            "victim": row.victim,
            "defense": row.defense,
            "adaptive": row.attack.adaptive,
            "tv": row.attack.tv,
            "psnr": float(psnr(claim[pairs], true).mean()),
            "null": float(psnr(mean, true).mean()),
            "ssim": float(ssim(claim[pairs], true).mean()),
            "null_ssim": float(ssim(mean, true).mean()),
            "identified": float(Identification().score(claim, true, context=context).mean()),
            "labels": float(torch.minimum(labels, given.to(labels)).sum()) / len(true),
            "loss": loss,
            "truth": there,
            "finished": loss <= there + ROUNDING,
        }


def truth_in_place(row: Row, claim: Tensor) -> Tensor:
    """The true images in the places of their labels, then of the nearest claimed ones; as the judge does."""
    other = (row.batch.labels[:, None] != row.labels.cpu()[None]).numpy()
    places = torch.from_numpy(assign(mse_table(row.batch.inputs, claim) + 1e6 * other))
    images = claim.clone()
    images[places] = row.batch.inputs
    return images


def exact_losses(rows: Sequence[Row], pixels: Tensor) -> list[float]:
    """The attack's own loss of images (R, B, C, H, W), in float32."""
    exact = [replace(row, attack=replace(row.attack, bf16=False)) for row in rows]
    before = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    points = rows[0].client.to_inputs(pixels)
    losses = batch_loss(exact, create_graph=False)(points, Rows.of(points, victims=len(rows)))
    torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = before
    return [float(x) for x in losses.detach()]


def run_piece(name: str, piece: Piece, out: Path, device: str, most: int) -> None:
    """One piece, and its file."""
    begun = time.time()
    piece = replace(piece, tv=piece.tv or (tuned(piece, out),))
    base = bench(piece, device)
    twins: dict[tuple[object, ...], list[Row]] = {}
    for row in prepare(piece, base, device):
        twins.setdefault(row.twin, []).append(row)
    left = [group[0] for group in twins.values()]
    print(f"{name}: {len(left)} searches, prepared in {time.time() - begun:.1f} s", flush=True)
    results: list[dict[str, Any]] = []
    size = max(1, most // (piece.restarts * piece.images))
    while left:
        part = left[:size]
        try:
            ended = list(judged(part, base))
        except torch.OutOfMemoryError:
            torch.cuda.empty_cache()
            print(f"{name}: out of memory at {len(part)} searches", flush=True)
            if size == 1:
                return
            size = (size + 1) // 2
            continue
        for row, result in zip(part, ended, strict=True):
            results += [{**result, "adaptive": twin.attack.adaptive} for twin in twins[row.twin]]
        left = left[size:]
        print(f"{name}: {len(left)} left, {time.time() - begun:.1f} s", flush=True)
    facts = {"name": name, "piece": asdict(piece), "device": device, "accuracy": base.accuracy}
    text = json.dumps({**facts, "seconds": time.time() - begun, "rows": results})
    (out / f"{name}.json").write_text(text + "\n", encoding="utf-8")
    print_rows(json.loads(text))


def tuned(piece: Piece, out: Path) -> float:
    """The weight of total variation with the best median PSNR in the tuning that fits, 0.01 without one."""
    same = ("model", "width", "epochs", "images", "attack")
    for path in sorted(out.glob("tune-*.json")):
        other = json.loads(path.read_text())
        if all(other["piece"][key] == getattr(piece, key) for key in same):
            weights = other["piece"]["tv"]
            return float(max(weights, key=lambda w: median([r for r in other["rows"] if r["tv"] == w])))
    return 0.01


def median(rows: Iterable[Mapping[str, Any]]) -> float:
    """Median PSNR."""
    return statistics.median(row["psnr"] for row in rows)


def print_rows(one: Mapping[str, Any]) -> None:
    """A line per defence, adaptation and weight."""
    piece = one["piece"]
    what = f"{piece['model']} {piece['width']}, {piece['epochs']} epochs, {piece['images']} images"
    how = f"{piece['attack']}, {piece['iterations']} × {piece['restarts']}"
    print(f"\n{one['name']}: {what}; {how}; {one['seconds']:.0f} s; accuracy {one['accuracy']:.2f}")
    print("| defence | adaptive | tv | n | PSNR | median | gain | SSIM | identified | labels | finished |")
    print("|---|---|---|---|---|---|---|---|---|---|---|")
    groups: dict[tuple[Any, ...], list[Any]] = {}
    for row in one["rows"]:
        groups.setdefault((row["defense"], row["adaptive"], row["tv"]), []).append(row)
    for (defense, adaptive, tv), rows in groups.items():
        column = {key: [row[key] for row in rows] for key in rows[0]}
        mean = mean_interval(column["psnr"], rng=ROOT)
        gain = paired_gain(column["psnr"], column["null"], rng=ROOT)
        named = share_interval(column["identified"])
        print(
            f"| {defense} | {'yes' if adaptive else 'no'} | {tv:g} | {len(rows)} | "
            f"{mean.value:.1f} [{mean.low:.1f}, {mean.high:.1f}] | {median(rows):.1f} | "
            f"{gain.value:+.1f} [{gain.low:.1f}, {gain.high:.1f}] | {statistics.mean(column['ssim']):.2f} | "
            f"{named.value:.2f} [{named.low:.2f}, {named.high:.2f}] | "
            f"{statistics.mean(column['labels']):.2f} | {sum(column['finished'])} of {len(rows)} |",
            flush=True,
        )


def read_plan(name: str) -> dict[str, Piece]:
    """Pieces by name: all, one of ``PLAN``, or those of a file."""
    if name == "all":
        return PLAN
    if name in PLAN:
        return {name: PLAN[name]}
    lines = Path(name).read_text(encoding="utf-8").splitlines()
    pairs = [line.partition(" ") for line in lines if line.strip()]
    return {key: Piece(**json.loads(how)) if how else PLAN[key] for key, _, how in pairs}


def main() -> None:
    """Parse and do."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("plan")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--rows", type=int, default=240, help="images in one batch at most")
    parser.add_argument("--seconds", type=float, default=1e9, help="no new piece after so many seconds")
    arguments = parser.parse_args()
    prepare_process()
    arguments.out.mkdir(parents=True, exist_ok=True)
    if arguments.plan == "table":
        for path in sorted(arguments.out.glob("*.json")):
            print_rows(json.loads(path.read_text()))
        return
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    torch.backends.cudnn.benchmark = True
    started = time.time()
    for name, piece in read_plan(arguments.plan).items():
        if not (arguments.out / f"{name}.json").exists() and time.time() - started < arguments.seconds:
            run_piece(name, piece, arguments.out, arguments.device, arguments.rows)


if __name__ == "__main__":
    main()
