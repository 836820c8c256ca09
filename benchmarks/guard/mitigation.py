"""Cost of mitigation in accuracy, and its effect on leaks.

    python -m benchmarks.guard mitigation --out runs/mitigation

A piece is one federation (network, seed, with or without mitigation, attacked or not), or a series of
attacked rounds. Federations: :mod:`benchmarks.guard.federations`; attacked ones use only the zoo's networks.
In an attacked round one client receives the model crafted by a shipped attack and computes one step; the
server reads the update with the attack's own read-out, and by inspecting rows and differences of rows in the
order of its thresholds. Null: the same candidates against equally many images that nobody trained on.
"""

import argparse
import json
import time
from collections import Counter
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.stats import t as student
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.active import play_out
from benchmarks.guard.federations import play
from benchmarks.guard.truth import ATTACKS, HIDDEN, READ, cifar, known, pictures, read, received
from glasshouse.guard.mitigate import mitigate
from glasshouse.rng import Rng

VICTIM = 64
TUNING = 100
"""From this seed on, a round uses training images, on which the mitigations were tuned."""
ARMS = ("plain", "mitigated", "attacked", "attacked-mitigated")
COMPARED = (
    ("honest, plain and mitigated", (False, False), (False, True)),
    ("plain, honest and attacked", (False, False), (True, False)),
    ("attacked, plain and mitigated", (True, False), (True, True)),
    ("honest and plain, attacked and mitigated", (False, False), (True, True)),
)
"""Pairs of federations: attacked or not, mitigated or not."""
CRAFTED = ("Robbing the Fed", "LOKI", "trap weights", "class fishing")


def recovered(update: Mapping[str, Tensor], layer: str, model: nn.Module, images: Tensor) -> set[int]:
    """Images close to a row, or to a difference of two rows in the order of thresholds."""
    weights = dict(model.named_parameters())
    weight, bias = (weights[f"{layer}.{part}"].detach() for part in ("weight", "bias"))
    order = (-bias / weight.norm(dim=1).clamp_min(1e-12)).argsort()
    rows = update[f"{layer}.weight"].double()
    candidates = F.normalize(torch.cat([rows, rows[order].diff(dim=0)]), dim=1)
    entered = []
    handle = model.get_submodule(layer).register_forward_pre_hook(lambda _, inputs: entered.append(inputs[0]))
    with torch.no_grad():
        model(images)
    handle.remove()
    goal = entered[0].double()
    contrast = torch.minimum(
        (goal - goal.mean(1, keepdim=True)).norm(dim=1), (goal - goal.mean(0)).norm(dim=1)
    )
    energy = (candidates @ goal.T).square().amax(0)
    missing = (goal.square().sum(1) - energy).clamp_min(0).sqrt() / contrast.clamp_min(1e-12)
    return set((missing < READ).nonzero()[:, 0].tolist())


def attacked_round(kind: str, seed: int) -> dict[str, object]:
    """One crafted model at one client: what the server reads from the plain and from the sent update."""
    pool = cifar("train" if seed >= TUNING else "test")
    order = torch.randperm(len(pool), generator=torch.Generator().manual_seed(100 + seed))
    victim, others = pool.pick(order[:VICTIM]), pool.pick(order[VICTIM : 2 * VICTIM])
    attack = ATTACKS[kind](VICTIM)
    played = play_out(attack, victim, clients=1, arguments={"hidden": HIDDEN}, seed=seed, auxiliary=known())
    model, (one,) = received(played), played.transcript.rounds
    layer = next(name for name, m in model.named_modules() if isinstance(m, nn.Linear))
    start = time.process_time()
    closed = mitigate(one.updates[0].tensors, model, (victim.inputs, victim.labels), kind="gradient")
    seconds = time.process_time() - start

    def share(tensors: Mapping[str, Tensor], images: Tensor) -> float:
        sent = replace(one, updates=(replace(one.updates[0], tensors=tensors),))
        transcript = replace(played.transcript, rounds=(sent,))
        client = 0 if attack.needs.scope == "update" else None
        claims = attack.run(played.look((0,), client, transcript), rng=Rng.root(seed))
        shown = read(pictures(claims), images) | recovered(tensors, layer, model, images)
        return len(shown) / len(images)

    sent = closed.update
    return {
        "kind": kind,
        "plain": share(one.updates[0].tensors, victim.inputs),
        "null": share(one.updates[0].tensors, others.inputs),
        "sent": None if sent is None else share(sent, victim.inputs),
        "sent null": None if sent is None else share(sent, others.inputs),
        "remedy": closed.remedy,
        "change": next((t.change for t in closed.trials if t.remedy == closed.remedy), None),
        "mitigation, s": seconds,
    }


def run(name: str, chosen: argparse.Namespace) -> None:
    """Run one piece, unless its file exists."""
    file = chosen.out / f"{name}.json"
    if file.exists():
        return
    torch.set_num_threads(1)
    start = time.process_time()
    what, seed, *rest = name.split(".")
    if what == "attacked":
        found = {"seed": seed, "attacked": [attacked_round(kind, int(seed)) for kind in CRAFTED]}
    else:
        (arm,) = rest
        found = play(what, chosen, seed=int(seed), mitigated="mitigated" in arm, attacked="attacked" in arm)
    file.write_text(json.dumps({**found, "seconds": time.process_time() - start}))


def _compared(pairs: list[tuple[dict[str, Any], dict[str, Any]]]) -> str:
    """Cells of a row: seeds, both accuracies, their difference, and the actions in the second."""
    ends = 100 * np.array([[first["accuracy"][-1], second["accuracy"][-1]] for first, second in pairs])
    cost = ends[:, 0] - ends[:, 1]
    margin = "-"
    if len(cost) > 1:
        margin = f"{student.ppf(0.975, len(cost) - 1) * cost.std(ddof=1) / len(cost) ** 0.5:.2f}"
    done = Counter[str]()
    for _, second in pairs:
        done.update(second["remedies"])
        done.update(f"{one['kind']}, {one['done']}" for one in second.get("crafted", ()))
    words = ", ".join(f"{name}: {count}" for name, count in done.items())
    a, b = ends.mean(0)
    return f"| {len(pairs)} | {a:.1f} | {b:.1f} | {cost.mean():.2f} ± {margin} | {words} |"


def table(folder: Path) -> str:
    """Markdown tables: accuracy with and without mitigation, and what the server reads."""
    found = [json.loads(file.read_text()) for file in sorted(folder.glob("*.json"))]
    lines = [
        "| federations of | seeds | accuracy | of the other | cost, points (95 %) | done in the other |",
        "|---|---|---|---|---|---|",
    ]
    arms = {
        (o["network"], o["seed"], o.get("attacks", False), o["mitigated"]): o
        for o in found
        if "mitigated" in o
    }
    for network in dict.fromkeys(key[0] for key in arms):
        for title, one, other in COMPARED:
            pairs = [
                (first, arms[network, seed, *other])
                for (name, seed, *arm), first in arms.items()
                if name == network and tuple(arm) == one and (network, seed, *other) in arms
            ]
            if pairs:
                lines.append(f"| {network}: {title} {_compared(pairs)}")
    rounds = [one for o in found for one in o.get("attacked", ())]
    lines += [
        "",
        "| attacked with | n | read before | null | not sent | read as sent | change | null + 1 point kept |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for kind in dict.fromkeys(one["kind"] for one in rounds):
        some = [one for one in rounds if one["kind"] == kind]
        sent = [one for one in some if one["sent"] is not None]
        kept = len(some) - len(sent) + sum(one["sent"] <= one["sent null"] + 0.01 for one in sent)
        shown = f"{np.mean([one['sent'] for one in sent]):.3f}" if sent else "-"
        change = f"{np.mean([one['change'] or 0 for one in sent]):.2f}" if sent else "-"
        lines.append(
            f"| {kind} | {len(some)} | {np.mean([o['plain'] for o in some]):.3f} | "
            f"{np.mean([o['null'] for o in some]):.3f} | {len(some) - len(sent)} | {shown} | {change} | "
            f"{kept} of {len(some)} |"
        )
    return "\n".join(lines)


def main() -> None:
    """Run missing pieces, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", default="cifar10")
    parser.add_argument("--networks", nargs="*", default=["lenet5", "mlp-512-plain"])
    parser.add_argument("--seeds", type=int, nargs="*", default=[0, 1, 2], help="of federations; 100 tuned")
    parser.add_argument("--attacked", type=int, nargs="*", default=[0, 1, 2, 3, 4], help="seeds of rounds")
    parser.add_argument("--federations", nargs="*", default=list(ARMS[:2]), choices=ARMS)
    parser.add_argument("--examples", type=int, default=800, help="of a client")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--out", type=Path, default=Path("runs/mitigation"))
    parser.add_argument("--workers", type=int, default=1)
    chosen = parser.parse_args()
    chosen.out.mkdir(parents=True, exist_ok=True)
    names = [f"attacked.{seed}" for seed in chosen.attacked]
    for network in chosen.networks:
        for seed in chosen.seeds:
            names += [f"{network}.{seed}.{arm}" for arm in chosen.federations]
    with ProcessPoolExecutor(chosen.workers) as pool:
        for future in [pool.submit(run, name, chosen) for name in names]:
            future.result()
    print(table(chosen.out))
