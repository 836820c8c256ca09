"""What closing leaks costs in accuracy, and whether it closes them.

    python -m benchmarks.guard mitigation --out runs/mitigation

A piece is one federation (network, seed, with or without), or a series of attacked rounds.
In a federation clients train one local epoch a round by SGD; updates are sent as they are, or each is
mitigated first, and left out where nothing helps. In an attacked round one client receives the model that a
shipped attack crafted, computes one step, and the server reads what is sent as the attack reads it, and by
looking at rows and at differences of rows in the order of its thresholds. Null: the same candidates against
as many pictures that nobody trained on.
"""

import argparse
import copy
import json
import time
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from scipy.stats import t as student
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.active import play_out
from benchmarks.guard.networks import NETWORKS
from benchmarks.guard.truth import ATTACKS, HIDDEN, READ, cifar, known, pictures, read, received
from glasshouse.data.sources import load
from glasshouse.guard.behaviour.inspect import initialise_again
from glasshouse.guard.mitigate import mitigate
from glasshouse.guard.watch import watch
from glasshouse.rng import Rng

CLIENTS, VICTIM, LOCAL, RATE = 10, 64, 32, 0.05
TUNING = 100
"""Seeds from which on a round is of training images: those that remedies were chosen on."""
CRAFTED = ("Robbing the Fed", "LOKI", "trap weights", "class fishing")


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


def recovered(update: Mapping[str, Tensor], layer: str, model: nn.Module, images: Tensor) -> set[int]:
    """The images to which a row, or a difference of two in the order of thresholds, comes near."""
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
    """One crafted model at one client: what the server reads of the update as it is, and of what is sent."""
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


def federation(network: str, chosen: argparse.Namespace, *, seed: int, mitigated: bool) -> dict[str, object]:
    """Accuracy after each round, and what was done to how many updates."""
    splits = load(chosen.data).splits
    train, test = splits["train"], splits["test"].batch(torch.arange(len(splits["test"])))
    order = torch.randperm(len(train), generator=torch.Generator().manual_seed(seed))
    shards = [train.batch(rows) for rows in order[: CLIENTS * chosen.examples].split(chosen.examples)]
    shape, classes = tuple(shards[0].inputs.shape[1:]), int(test.labels.max()) + 1
    model = initialise_again(NETWORKS[network](shape, classes), seed=seed)
    generator = torch.Generator().manual_seed(seed)
    accuracy, remedies, seconds = [], {}, 0.0
    for _ in range(chosen.rounds):
        states = []
        for shard in shards:
            with watch() as seen:
                trained = local_epoch(model, shard.inputs, shard.labels, generator)
            if mitigated:
                change = change_of(model, trained)
                start = time.process_time()
                closed = mitigate(change, model, (shard.inputs, shard.labels, seen))
                seconds += time.process_time() - start
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
        "mitigation, s": seconds,
    }


def run(name: str, chosen: argparse.Namespace) -> None:
    """One piece, unless its file is there."""
    file = chosen.out / f"{name}.json"
    if file.exists():
        return
    torch.set_num_threads(1)
    start = time.process_time()
    what, seed, *rest = name.split(".")
    if what == "attacked":
        found = {"seed": seed, "attacked": [attacked_round(kind, int(seed)) for kind in CRAFTED]}
    else:
        found = federation(what, chosen, seed=int(seed), mitigated=rest == ["mitigated"])
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
        half = student.ppf(0.975, len(cost) - 1) * cost.std(ddof=1) / len(cost) ** 0.5
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
    """Run the pieces that are missing, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", default="cifar10")
    parser.add_argument("--networks", nargs="*", default=["lenet5", "mlp-512-plain"])
    parser.add_argument("--seeds", type=int, nargs="*", default=[0, 1, 2], help="of federations; 100 tuned")
    parser.add_argument("--attacked", type=int, nargs="*", default=[0, 1, 2, 3, 4], help="seeds of rounds")
    parser.add_argument("--examples", type=int, default=800, help="of a client")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--out", type=Path, default=Path("runs/mitigation"))
    parser.add_argument("--workers", type=int, default=1)
    chosen = parser.parse_args()
    chosen.out.mkdir(parents=True, exist_ok=True)
    names = [f"attacked.{seed}" for seed in chosen.attacked]
    for network in chosen.networks:
        for seed in chosen.seeds:
            names += [f"{network}.{seed}.plain", f"{network}.{seed}.mitigated"]
    with ProcessPoolExecutor(chosen.workers) as pool:
        for future in [pool.submit(run, name, chosen) for name in names]:
            future.result()
    print(table(chosen.out))
