"""Accuracy of preflight, compared with what attacks read from the same updates, and with non-members.

    python -m benchmarks.guard preflight --out runs/preflight --seeds 1 2 3

A piece is one update: an attack crafts a model (or does not), one client computes one step on CIFAR-10
images, under a defence, and the attack reads the update without knowing the data. An image counts as read if
a claim misses less than half of its contrast. Preflight checks the same update twice: with the client's
images, and with equally many images added that were not trained on. The attacks' own data never come from the
evaluation images.
"""

import argparse
import json
import time
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.stats import beta, spearmanr
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.active import Played, play_out
from benchmarks.active import cifar as load_split
from glasshouse.attacks.base import About, Reconstruction
from glasshouse.attacks.inversion.linear_input import LinearInput
from glasshouse.attacks.linear.cah import CuriousAbandonHonesty, find_scale
from glasshouse.attacks.linear.fishing import Fishing
from glasshouse.attacks.linear.loki import Loki
from glasshouse.attacks.linear.robbing_the_fed import RobbingTheFed
from glasshouse.guard.preflight import preflight
from glasshouse.models import build as models
from glasshouse.registry import load
from glasshouse.rng import Rng
from glasshouse.wire import Batch

BATCHES = (1, 4, 16, 64, 256)
HIDDEN = "512,64"
KNOWN = 400
READ = 0.5
"""Largest error of a claim as a share of the image's contrast: 18 dB for ordinary contrast."""
DEFENSES: Mapping[str, Mapping[str, Mapping[str, Any]]] = {
    "none": {},
    "clipped": {"clip": {"norm": 0.5}},
    "noise": {"gaussian_noise": {"std": 1e-4}},
    "pruned": {"prune": {"share": 0.5}},
}
FIRST = "features.fc1"


class Rows:
    """Reads every row of the first layer as an image; for honest models and class fishing."""

    needs = LinearInput.needs

    def __init__(self, crafter: Fishing | None = None) -> None:
        if crafter is not None:
            self.craft = crafter.craft

    def run(self, view: Any, *, rng: Rng) -> tuple[Reconstruction, ...]:
        """An image for each row that is active for any example."""
        del rng
        (one,) = view.rounds
        (update,) = one.updates.values()
        rows = update.tensors[f"{FIRST}.weight"]
        rows = rows[rows.any(1)]
        rows = rows / rows.abs().amax(1, keepdim=True).clamp_min(1e-30)
        return (_claim((0.5 + rows / 2).reshape(-1, *view.terms.architecture.input_shape)),)


def _claim(images: Tensor) -> Reconstruction:
    return Reconstruction(
        about=About(rounds=(0,)), inputs=images, labels=None, confidence=torch.ones(len(images))
    )


cifar = cache(load_split)


@cache
def known() -> Batch:
    """The server's own images."""
    train = cifar("train")
    return train.pick(torch.randperm(len(train), generator=Rng.root(0, salt="auxiliary").torch())[:KNOWN])


@cache
def trap_scale(batch: int) -> float:
    """Scale of trap weights whose rows fire for 3 examples of a batch on average, at most for half."""
    return find_scale(known().inputs.flatten(1), min(0.5, 3 / batch), rng=Rng.root(0).child("traps"))


ATTACKS: Mapping[str, Callable[[int], Any]] = {
    "Robbing the Fed": lambda batch: RobbingTheFed(bins=max(16, 2 * batch)),
    "LOKI": lambda _: Loki(width=2),
    "trap weights": lambda batch: CuriousAbandonHonesty(scale=trap_scale(batch)),
    "class fishing": lambda _: Rows(Fishing(strategy="class", target=3)),
    "rows of an honest model": lambda _: Rows(),
    "linear read-out": lambda _: LinearInput(),
}


def contrasts(images: Tensor) -> Tensor:
    """Contrast of each image (B,): distance from a flat image or the server's mean, whichever is less."""
    flat = images.flatten(1)
    mean = known().inputs.flatten(1).mean(0)
    return torch.minimum((flat - flat.mean(1, keepdim=True)).norm(dim=1), (flat - mean).norm(dim=1))


def read(claimed: Tensor, images: Tensor) -> set[int]:
    """Indices of images that a claim is close to, at the best contrast; each claim counts once."""
    if not len(claimed):
        return set()
    goals = images.flatten(1).double() - 0.5
    energy = (F.normalize(claimed.flatten(1).double() - 0.5, dim=1) @ goals.T).square()
    missing = (goals.square().sum(1) - energy).clamp_min(0).sqrt() / contrasts(images)
    least, who = missing.min(1)
    return set(who[least < READ].tolist())


def pictures(claims: Sequence[object]) -> Tensor:
    """All claimed images, (N, C, H, W)."""
    none = torch.empty(0, *known().inputs.shape[1:])
    return torch.cat([none, *(c.inputs for c in claims if isinstance(c, Reconstruction))])


def received(played: Played) -> nn.Module:
    """The model received by the client."""
    sent = min(played.transcript.rounds[0].broadcasts, key=lambda one: one.client is None)
    model = models.build(sent.architecture)
    models.load(model, sent.tensors)
    return model.train()


def piece(attack: str, defense: str, batch: int, seed: int, split: str) -> dict[str, Any]:
    """Measure one update."""
    pool = cifar(split)
    number = sum(map(ord, attack + defense)) + 1000 * batch
    order = torch.randperm(len(pool), generator=Rng.root(seed, salt=f"deal {number}").torch())
    private, others = pool.pick(order[:batch]), pool.pick(order[batch : 2 * batch])
    defenses = [load("defenses", n)(**a) for n, a in DEFENSES[defense].items()]
    how = {"auxiliary": known(), "defenses": defenses}
    played = play_out(
        ATTACKS[attack](batch), private, clients=1, arguments={"hidden": HIDDEN}, seed=seed, **how
    )
    claimed = pictures(played.claims[0])
    model, update = received(played), played.transcript.rounds[0].updates[0]
    start = time.process_time()
    seen = preflight(update.tensors, model, private.inputs, private.labels, kind="gradient")
    seconds = time.process_time() - start
    both = torch.cat([private.inputs, others.inputs]), torch.cat([private.labels, others.labels])
    mixed = preflight(update.tensors, model, *both, kind="gradient")
    found, standing = read(claimed, private.inputs), set(seen.standing("input"))
    return {
        "attack": attack,
        "defense": defense,
        "batch": batch,
        "seed": seed,
        "claimed": len(claimed),
        "read": len(found),
        "null": len(read(claimed, others.inputs)),
        "standing": len(standing),
        "both": len(found & standing),
        "missed": sorted(found - standing),
        "strangers": sum(i >= batch for i in mixed.standing("input")),
        "members": sum(i < batch for i in mixed.standing("input")),
        "seconds": round(seconds, 3),
    }


def interval(hits: int, n: int) -> str:
    """A share with its exact 95 % interval."""
    if not n:
        return "-"
    low = float(beta.ppf(0.025, hits, n - hits + 1)) if hits else 0.0
    high = float(beta.ppf(0.975, hits + 1, n - hits)) if hits < n else 1.0
    return f"{hits / n:.4f} [{low:.4f}, {high:.4f}] ({hits} of {n})"


def rank_correlation(rows: list[dict[str, Any]], draws: int = 1000) -> str:
    """Spearman's correlation of preflight's shares and the attacks' shares, with a bootstrap over updates."""
    shares = np.array([[r["standing"] / r["batch"], r["read"] / r["batch"]] for r in rows])
    rng = np.random.default_rng(0)
    drawn = [
        spearmanr(*shares[rng.integers(len(shares), size=len(shares))].T).statistic for _ in range(draws)
    ]
    low, high = np.nanquantile(drawn, [0.025, 0.975])
    return f"{spearmanr(*shares.T).statistic:.3f} [{low:.3f}, {high:.3f}]"


def table(rows: list[dict[str, Any]]) -> str:
    """The results as a Markdown table."""
    lines = [
        f"{len(rows)} updates. Rank correlation {rank_correlation(rows)}.",
        f"Recall {interval(sum(r['both'] for r in rows), sum(r['read'] for r in rows))}.",
        "Precision beside strangers "
        + interval(sum(r["members"] for r in rows), sum(r["members"] + r["strangers"] for r in rows))
        + ".",
        "",
        "| attack | defence | updates | images | read | null | stand | read and named | strangers named |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for attack, defense in dict.fromkeys((r["attack"], r["defense"]) for r in rows):
        some = [r for r in rows if (r["attack"], r["defense"]) == (attack, defense)]
        sums = [sum(r[k] for r in some) for k in ("batch", "read", "null", "standing", "both", "strangers")]
        lines.append(f"| {attack} | {defense} | {len(some)} | " + " | ".join(map(str, sums)) + " |")
    return "\n".join(lines)


def main() -> None:
    """Run missing pieces, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("runs/preflight"))
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3], help="0 tuned")
    parser.add_argument("--split", default="test", choices=("train", "test"))
    parser.add_argument("--batches", type=int, nargs="+", default=list(BATCHES))
    parser.add_argument("--table", action="store_true", help="print what is there")
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    chosen.out.mkdir(parents=True, exist_ok=True)
    for seed in chosen.seeds if not chosen.table else ():
        for batch in chosen.batches:
            for attack in ATTACKS if batch == 1 else list(ATTACKS)[:-1]:
                for defense in DEFENSES:
                    file = chosen.out / f"{attack}.{defense}.{batch}.{seed}.json".replace(" ", "-")
                    if not file.exists():
                        start = time.process_time()
                        row = piece(attack, defense, batch, seed, chosen.split)
                        file.write_text(json.dumps({**row, "all": round(time.process_time() - start, 2)}))
    rows = [json.loads(file.read_text()) for file in sorted(chosen.out.glob("*.json"))]
    print(table([r for r in rows if r["seed"] in chosen.seeds]))
