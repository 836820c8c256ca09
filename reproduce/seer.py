"""SEER on CIFAR-10, for docs/results/active.md: ``python -m reproduce.seer WHAT --source npz:FILE``.

``rounds``: how often the brightest example of a sum is recovered. 8,000 train images are the server's own,
evaluation is on test images; recipes were tuned on the other train images (``--split train``). ``guard``:
whether a client that inspects the model before training refuses it, and D-SNR, compared with untrained and
trained models.
"""

import argparse
import copy
import time
from collections.abc import Mapping
from typing import Any

import torch
from benchmarks.active import play_out
from torch import Tensor, nn

from glasshouse.api.guard import with_behaviour
from glasshouse.attacks.base import Reconstruction
from glasshouse.attacks.linear.seer.attack import Seer
from glasshouse.attacks.linear.seer.chosen import brightness
from glasshouse.attacks.linear.seer.training import SecretTraining, train_secret
from glasshouse.data.sources import load as load_data
from glasshouse.guard.inspect import Seen, inspect
from glasshouse.guard.pursuit.examples import Own
from glasshouse.guard.pursuit.inspect import HonestRanges
from glasshouse.images import psnr
from glasshouse.models.build import build, state
from glasshouse.rng import Rng
from glasshouse.wire import Architecture, Batch
from reproduce.active import spread

MODEL: Mapping[str, Any] = {
    "model": "maui_cnn",
    "arguments": {"width": 16, "batch_norm": False, "poolings": 2, "hidden": 512},
}
KNOWN = 8000
SEEN, PAPER = 18.0, 19.0
"""PSNR above which an image counts as recovered: ours, and the paper's."""
COLUMNS = (
    *("examples", "clients", "n", "exactly one above the threshold", "filed", "brightest above 18; 19 dB"),
    *("median PSNR, dB", "class right", "mean bright image above 18; 19 dB", "brightest of another batch"),
    "CPU s, at most",
)
SUMS: Mapping[str, tuple[int, int]] = {
    "64": (1, 64),
    "256": (8, 32),
}
"""(clients, examples per client); several clients use a secure sum."""


def pools(source: str, split: str) -> tuple[Batch, Batch]:
    """The server's images, and the evaluation images."""
    data = load_data(source)
    train = data.split("train").batch()
    order = torch.randperm(len(train), generator=Rng.root(0, salt="auxiliary").torch())
    judged = data.split("test").batch() if split == "test" else train.pick(order[KNOWN:])
    return train.pick(order[:KNOWN]), judged


def rounds(arguments: argparse.Namespace) -> None:
    """Print one row per sum: claims made, and how many are correct."""
    known, pool = pools(arguments.source, arguments.split)
    attack = Seer(training=SecretTraining(steps=arguments.steps))
    print(f"| {' | '.join(COLUMNS)} |\n|{'---|' * len(COLUMNS)}")
    for name in arguments.sums:
        clients, each = SUMS[name]
        size = clients * each
        bright = brightness(known.inputs)
        threshold = bright.double().quantile(1 - 1 / size)
        guess = known.inputs[bright >= threshold].mean(0)
        rows, spent, claimed, brightest = (
            list[dict[str, float]](),
            list[float](),
            list[Tensor](),
            list[Tensor](),
        )
        for seed in range(arguments.seeds):
            order = torch.randperm(len(pool), generator=Rng.root(seed, salt="deal").torch())
            private = pool.pick(order[:size])
            before = time.process_time()
            played = play_out(
                attack, private, clients=clients, seed=seed, auxiliary=known, secure_sum=clients > 1, **MODEL
            )
            spent.append(time.process_time() - before)
            (claim,) = (c for c in played.claims[0] if isinstance(c, Reconstruction))
            rows.append(judge(claim, private, guess, float(threshold)))
            claimed.append(claim.inputs)
            brightest.append(private.inputs[int(brightness(private.inputs).argmax())][None])
        for one, claim_of_it, stranger in zip(rows, claimed, [*brightest[1:], brightest[0]], strict=True):
            one["stranger"] = quality(claim_of_it, stranger) if len(claim_of_it) else 0.0
        print(row(size, clients, rows, max(spent)), flush=True)


def judge(claim: Reconstruction, private: Batch, guess: Tensor, threshold: float) -> dict[str, float]:
    """Scores of one round's claim, against the brightest example of the round."""
    size = brightness(private.inputs)
    target = int(size.argmax())
    truth = private.inputs[target : target + 1]
    found = {
        "alone": float((size >= threshold).sum() == 1),
        "filed": float(len(claim.inputs)),
        "guess": quality(guess[None], truth),
    }
    if len(claim.inputs):
        assert claim.labels is not None  # SEER always claims labels
        found["psnr"] = quality(claim.inputs, truth)
        found["class"] = float(claim.labels[0] == private.labels[target])
    return found


def quality(image: Tensor, truth: Tensor) -> float:
    """PSNR, dB."""
    return float(psnr(image.double(), truth.double(), data_range=1.0))


def row(size: int, clients: int, rows: list[dict[str, float]], seconds: float) -> str:
    """One row of the table."""

    def above(key: str) -> str:
        return "; ".join(f"{sum(r.get(key, 0) > limit for r in rows)}" for limit in (SEEN, PAPER))

    filed = [r for r in rows if r["filed"]]
    median = sorted(r["psnr"] for r in filed)[len(filed) // 2] if filed else 0.0
    cells = (
        *(f"{value:g}" for value in (size, clients, len(rows), sum(r["alone"] for r in rows), len(filed))),
        above("psnr"),
        f"{median:.1f}",
        f"{sum(r['class'] for r in filed):g} of {len(filed)}",
        above("guess"),
        above("stranger"),
        f"{seconds:.0f}",
    )
    return f"| {' | '.join(cells)} |"


def guard(arguments: argparse.Namespace) -> None:
    """Rulings of the client's check on the model, and D-SNR, over batches of 64."""
    known, pool = pools(arguments.source, arguments.split)
    architecture = Architecture.of(MODEL["model"], (3, 32, 32), 10, MODEL["arguments"])
    secret, _ = train_secret(
        architecture,
        known.inputs,
        examples=64,
        looks_for="brightest",
        recipe=SecretTraining(steps=arguments.steps),
    )
    agreed = build(architecture, rng=Rng.root(1))
    models = {"SEER": secret.model, "fresh": agreed, "trained honestly": trained(architecture, known)}
    seen: dict[str, list[tuple[Seen, float]]] = {name: [] for name in models}
    for seed in range(arguments.seeds):
        batch = pool.pick(torch.randperm(len(pool), generator=Rng.root(seed, salt="deal").torch())[:64])
        data = (batch.inputs, batch.labels)
        honest = HonestRanges.of(agreed, Own(inputs=batch.inputs, targets=batch.labels))
        for name, model in models.items():
            tensors = state(model)
            outcome = with_behaviour(
                inspect(tensors, agreed=state(agreed)), tensors, copy.deepcopy(agreed), data, honest=honest
            )
            seen[name].append((outcome, d_snr(model, batch)))
            print(
                name, seed, outcome.findings, {k: round(v, 3) for k, v in outcome.inspection.values.items()}
            )
    print("| model | refused | what was found | D-SNR, mean (range) |\n|---|---|---|---|")
    for name, looks in seen.items():
        found = sorted({finding[:100] for outcome, _ in looks for finding in outcome.findings})
        refused = sum(bool(outcome.findings) for outcome, _ in looks)
        ratios = spread([round(ratio, 2) for _, ratio in looks])
        print(f"| {name} | {refused} of {len(looks)} | {'; '.join(found) or 'nothing'} | {ratios} |")


def trained(architecture: Architecture, known: Batch, steps: int = 500) -> nn.Module:
    """An honest model after some steps of Adam."""
    model = build(architecture, rng=Rng.root(2)).train()
    optimizer, generator = torch.optim.Adam(model.parameters(), lr=1e-3), Rng.root(3).torch()
    for _ in range(steps):
        rows = torch.randint(len(known), (64,), generator=generator)
        optimizer.zero_grad()
        torch.autograd.backward(nn.functional.cross_entropy(model(known.inputs[rows]), known.labels[rows]))
        optimizer.step()
    return model


def d_snr(model: nn.Module, batch: Batch) -> float:
    """Largest share of one example in a layer's gradient: its norm divided by that of the others' sum.

    Source: Garov et al. 2024, arXiv:2306.03013.
    """
    names = [n for n, p in model.named_parameters() if n.endswith("weight") and p.ndim >= 2]
    parameters = dict(model.named_parameters())
    each = []
    for image, label in zip(batch.inputs, batch.labels, strict=True):
        loss = nn.functional.cross_entropy(model(image[None]), label[None])
        each.append(torch.autograd.grad(loss, [parameters[n] for n in names]))
    largest = 0.0
    for gradients in zip(*each, strict=True):
        rows = torch.stack([g.flatten() for g in gradients]).double()
        others = rows.sum(0) - rows
        largest = max(largest, float((rows.norm(dim=1) / others.norm(dim=1).clamp_min(1e-30)).max()))
    return largest


def main() -> None:
    """Run the requested part."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("rounds", "guard"))
    parser.add_argument("--source", default="cifar10")
    parser.add_argument("--split", default="test", choices=("train", "test"))
    parser.add_argument("--seeds", type=int, default=40)
    parser.add_argument("--steps", type=int, default=SecretTraining().steps)
    parser.add_argument("--sums", nargs="+", default=list(SUMS), choices=list(SUMS))
    arguments = parser.parse_args()
    {"rounds": rounds, "guard": guard}[arguments.what](arguments)


if __name__ == "__main__":
    main()
