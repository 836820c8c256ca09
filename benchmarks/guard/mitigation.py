"""What closing leaks costs in accuracy, and whether it closes them.

A piece is one federation (network, seed, with or without), or a series of attacked rounds.
In a federation clients train one local epoch a round by SGD; updates are sent as they are, or each is
mitigated first, and left out where nothing helps. In an attacked round one client receives a crafted model,
computes one step or one epoch, and the server reads its update without knowing the data: rows, and
differences of rows in the order of its thresholds. Null: the same candidates against as many pictures that
nobody trained on.
"""

import argparse
import copy
import json
import time
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.guard.crafted import bins, fishing, traps
from benchmarks.guard.networks import NETWORKS
from glasshouse.data.sources import load
from glasshouse.guard.behaviour.inspect import initialise_again
from glasshouse.guard.mitigate import mitigate
from glasshouse.guard.preflight import RECOGNISED

CLIENTS, EXAMPLES, VICTIM, LOCAL, RATE = 8, 250, 64, 25, 0.05
CRAFTED = {
    "bins": lambda model, known: bins(model, known, rows=512, noise=0.5, scaled=False),
    "bins in 128 rows": lambda model, known: bins(model, known, rows=128, noise=0.5, scaled=True),
    "trap weights": lambda model, _: traps(model, scale=0.95),
    "class fishing": lambda model, _: fishing(model, bias=10),
}


def local_epoch(model: nn.Module, images: Tensor, labels: Tensor, generator: torch.Generator) -> nn.Module:
    """A trained copy."""
    work = copy.deepcopy(model)
    optimizer = torch.optim.SGD(work.parameters(), lr=RATE)
    for rows in torch.randperm(len(images), generator=generator).split(LOCAL):
        optimizer.zero_grad()
        F.cross_entropy(work(images[rows]), labels[rows]).backward()
        optimizer.step()
    return work


def change_of(before: nn.Module, after: nn.Module) -> dict[str, Tensor]:
    """What the parameters changed by."""
    start = dict(before.named_parameters())
    return {name: (p - start[name]).detach() for name, p in after.named_parameters()}


def recovered(update: Mapping[str, Tensor], order: Tensor, images: Tensor) -> float:
    """Share of the images to which a row, or a difference of two in the server's order, comes near."""
    rows = update["1.weight"].double()
    ordered = rows[order]
    candidates = F.normalize(torch.cat([rows, ordered.diff(dim=0)]), dim=1)
    goal = images.flatten(1).double()
    contrast = torch.minimum(
        (goal - goal.mean(1, keepdim=True)).norm(dim=1), (goal - goal.mean(0)).norm(dim=1)
    )
    energy = (candidates @ goal.T).square().amax(0)
    missing = (goal.square().sum(1) - energy).clamp_min(0).sqrt() / contrast.clamp_min(1e-12)
    return float((missing < RECOGNISED).double().mean())


def attacked_round(
    kind: str, known: Tensor, victim: tuple[Tensor, Tensor], others: Tensor, seed: int
) -> dict[str, object]:
    """One crafted model at one client: what the server reads of the update as it is, and of what is sent."""
    torch.manual_seed(seed)
    model = NETWORKS["mlp-512-plain"](tuple(known.shape[1:]), 10)
    with torch.no_grad():
        CRAFTED[kind](model, known)
    first = model[1]
    order = (-first.bias / first.weight.norm(dim=1)).argsort()
    update = change_of(model, local_epoch(model, *victim, torch.Generator().manual_seed(seed)))
    # one step of the whole batch, the server's best case
    weights = dict(model.named_parameters())
    gradient = torch.autograd.grad(F.cross_entropy(model(victim[0]), victim[1]), list(weights.values()))
    rows: dict[str, object] = {"kind": kind}
    for name, sent, what in (
        ("epoch", update, "delta"),
        ("step", dict(zip(weights, gradient, strict=True)), "gradient"),
    ):
        closed = mitigate(sent, model, victim, kind=what)
        rows[name] = {
            "plain": recovered(sent, order, victim[0]),
            "null": recovered(sent, order, others),
            "sent": None if closed.update is None else recovered(closed.update, order, victim[0]),
            "sent null": None if closed.update is None else recovered(closed.update, order, others),
            "remedy": closed.remedy,
        }
    return rows


def federation(network: str, data: str, seed: int, rounds: int, *, mitigated: bool) -> dict[str, object]:
    """Accuracy after each round, and what was done to how many updates."""
    splits = load(data).splits
    train, test = splits["train"], splits["test"].batch(torch.arange(len(splits["test"])))
    order = torch.randperm(len(train), generator=torch.Generator().manual_seed(seed))
    shards = [train.batch(rows) for rows in order[: CLIENTS * EXAMPLES].split(EXAMPLES)]
    shape, classes = tuple(shards[0].inputs.shape[1:]), int(test.labels.max()) + 1
    model = initialise_again(NETWORKS[network](shape, classes), seed=seed)
    generator = torch.Generator().manual_seed(seed)
    accuracy, remedies = [], {}
    for _ in range(rounds):
        states = []
        for shard in shards:
            trained = local_epoch(model, shard.inputs, shard.labels, generator)
            if mitigated:
                change = change_of(model, trained)
                closed = mitigate(change, model, (shard.inputs, shard.labels))
                done = closed.remedy or ("not sent" if closed.update is None else "none")
                remedies[done] = remedies.get(done, 0) + 1
                if closed.update is None:
                    continue
                with torch.no_grad():
                    for name, p in trained.named_parameters():
                        p.add_(closed.update[name] - change[name])
            states.append(trained.state_dict())
        if states:
            mean = {name: sum(s[name].double() for s in states) / len(states) for name in states[0]}
            model.load_state_dict({n: t.to(model.state_dict()[n].dtype) for n, t in mean.items()})
        model.eval()
        with torch.no_grad():
            accuracy.append(float((model(test.inputs).argmax(1) == test.labels).double().mean()))
        model.train()
    return {
        "network": network,
        "seed": seed,
        "mitigated": mitigated,
        "accuracy": accuracy,
        "remedies": remedies,
    }


def attacked(data: str, seed: int, rounds: int) -> dict[str, object]:
    """Crafted models of all kinds, one victim each round."""
    train = load(data).splits["train"]
    order = torch.randperm(len(train), generator=torch.Generator().manual_seed(100 + seed))
    known = train.batch(order[-1000:]).inputs
    found = []
    for number in range(rounds):
        places = order[: (number + 1) * 2 * VICTIM][-2 * VICTIM :]
        victim, others = train.batch(places[:VICTIM]), train.batch(places[VICTIM:])
        kind = list(CRAFTED)[number % len(CRAFTED)]
        pair = victim.inputs, victim.labels
        found.append(attacked_round(kind, known, pair, others.inputs, 1000 * seed + number))
    return {"seed": seed, "attacked": found}


def run(name: str, chosen: argparse.Namespace) -> None:
    """One piece, unless its file is there."""
    file = chosen.out / f"{name}.json"
    if file.exists():
        return
    torch.set_num_threads(1)
    start = time.process_time()
    what, seed, *rest = name.split(".")
    if what == "attacked":
        found = attacked(chosen.data, int(seed), chosen.rounds)
    else:
        found = federation(what, chosen.data, int(seed), chosen.rounds, mitigated=rest == ["mitigated"])
    file.write_text(json.dumps({**found, "seconds": time.process_time() - start}))


def table(folder: Path) -> str:
    """Markdown: accuracy with and without, and what the server reads."""
    found = [json.loads(file.read_text()) for file in sorted(folder.glob("*.json"))]
    lines = [
        "| network | seeds | plain | mitigated | cost, points (95 %) | done to updates |",
        "|---|---|---|---|---|---|",
    ]
    plain = {(o["network"], o["seed"]): o for o in found if o.get("mitigated") is False}
    closed = {(o["network"], o["seed"]): o for o in found if o.get("mitigated") is True}
    for network in dict.fromkeys(n for n, _ in plain):
        pairs = [
            (plain[k]["accuracy"][-1], closed[k]["accuracy"][-1])
            for k in plain
            if k[0] == network and k in closed
        ]
        if not pairs:
            continue
        cost = 100 * np.array([a - b for a, b in pairs])
        half = (
            {2: 12.71, 3: 4.303, 4: 3.182, 5: 2.776}.get(len(cost), 1.96)
            * cost.std(ddof=1)
            / len(cost) ** 0.5
        )
        done: dict[str, int] = {}
        for k, o in closed.items():
            if k[0] == network:
                for name, count in o["remedies"].items():
                    done[name] = done.get(name, 0) + count
        a, b = (100 * np.mean(one) for one in zip(*pairs, strict=True))
        words = ", ".join(f"{name}: {count}" for name, count in done.items())
        lines.append(
            f"| {network} | {len(pairs)} | {a:.1f} | {b:.1f} | {cost.mean():.2f} ± {half:.2f} | {words} |"
        )
    rounds = [one for o in found for one in o.get("attacked", ())]
    lines += [
        "",
        "| attacked with | update | n | read before | null | not sent | read as sent | null + 1 point kept |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for kind in dict.fromkeys(one["kind"] for one in rounds):
        for form in ("step", "epoch"):
            some = [one[form] for one in rounds if one["kind"] == kind]
            sent = [one for one in some if one["sent"] is not None]
            held = len(some) - len(sent) + sum(one["sent"] <= one["sent null"] + 0.01 for one in sent)
            read = f"{np.mean([one['sent'] for one in sent]):.3f}" if sent else "-"
            lines.append(
                f"| {kind} | {form} | {len(some)} | {np.mean([o['plain'] for o in some]):.3f} | "
                f"{np.mean([o['null'] for o in some]):.3f} | {len(some) - len(sent)} | {read} | "
                f"{held} of {len(some)} |"
            )
    return "\n".join(lines)


def main() -> None:
    """Run the pieces that are missing, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", required=True)
    parser.add_argument("--networks", nargs="*", default=["mlp-512-plain", "lenet5", "vgg"])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--out", type=Path, default=Path("runs/mitigation"))
    parser.add_argument("--workers", type=int, default=1)
    chosen = parser.parse_args()
    chosen.out.mkdir(parents=True, exist_ok=True)
    names = [f"attacked.{seed}" for seed in range(chosen.seeds)]
    for network in chosen.networks:
        for seed in range(chosen.seeds):
            names += [f"{network}.{seed}.plain", f"{network}.{seed}.mitigated"]
    with ProcessPoolExecutor(chosen.workers) as pool:
        for future in [pool.submit(run, name, chosen) for name in names]:
            future.result()
    print(table(chosen.out))
