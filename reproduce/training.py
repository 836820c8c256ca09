"""What is lost where an attack is not told how clients train: the table "Training as people run it".

``python -m reproduce.training [--out runs/training]``. Every piece is one update of two digits: the attack is
told the client's loss, mode and steps, or takes them for an ordinary step in evaluation mode. Pieces that are
done are kept, one line each; the table is printed at the end. 20 updates of each kind cost 10 CPU minutes.
"""

import argparse
import copy
import json
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.optimize import linear_sum_assignment
from scipy.stats import bootstrap
from torch import Tensor, nn

import glasshouse as gh
from glasshouse.attacks.parts.replica import replica
from glasshouse.data.sources import load as load_data
from glasshouse.errors import GlasshouseError
from glasshouse.federation.client import LocalTraining
from glasshouse.models.build import build
from glasshouse.models.memory import keep
from glasshouse.rng import Rng
from glasshouse.settings import ORDINARY, Training
from glasshouse.tasks.classification import Classification
from glasshouse.wire import Architecture, Batch, Kind

SIZE, UPDATES, OTHERS = 2, 20, 100
SEARCH = {"iterations": 150, "restarts": 1}
WEIGHTS = (10.0, 1.0, 1.0, 0.1, 1.0, 1.0, 1.0, 0.5, 1.0, 1.0)
PLAIN = Classification(classes=10)


@dataclass(frozen=True, kw_only=True)
class Setting:
    """How clients train: their loss and their steps, and what the attack takes them for if it is not told."""

    task: Classification = PLAIN
    training: Training = ORDINARY
    sends: Kind = "gradient"
    told: dict[str, Any] = field(default_factory=dict)
    untold: dict[str, Any] = field(default_factory=dict)
    norm: bool = False


STEPS = {"batch_size": 1, "local_epochs": 2}
SETTINGS = {
    "plain": Setting(),
    "batch norm in training mode": Setting(training=Training(mode="training"), norm=True),
    "class weights": Setting(task=replace(PLAIN, weights=WEIGHTS)),
    "smoothing 0.2": Setting(task=replace(PLAIN, smoothing=0.2)),
    "binary cross-entropy": Setting(task=replace(PLAIN, criterion="binary")),
    "mean squared error": Setting(task=replace(PLAIN, criterion="squared")),
    "focal, gamma 2": Setting(task=replace(PLAIN, criterion="focal")),
    "4 plain steps": Setting(sends="delta", told=STEPS, untold=STEPS),
    "FedProx, mu 1, 4 steps": Setting(
        training=Training(proximal=1.0), sends="delta", told=STEPS, untold=STEPS
    ),
    "clipping to 0.5, 4 steps": Setting(
        training=Training(clip_norm=0.5), sends="delta", told=STEPS, untold=STEPS
    ),
    "accumulation over 2 batches": Setting(
        training=Training(accumulate=2), sends="delta", told={"batch_size": 1}, untold={"batch_size": 1}
    ),
    "float16": Setting(training=Training(precision="float16")),
}


def network(*, norm: bool, seed: int) -> nn.Module:
    """A small convolution, untrained."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        middle = [nn.BatchNorm2d(8)] if norm else []
        return nn.Sequential(
            nn.Conv2d(1, 8, 3, padding=1), *middle, nn.ReLU(), nn.Flatten(), nn.Linear(512, 10)
        ).eval()


def digits() -> tuple[Batch, Batch]:
    """Private digits, and public ones of which the null adversary knows the mean."""
    source = load_data("digits")
    test, train = source.splits["test"], source.splits["train"]
    return test.batch(torch.arange(UPDATES * SIZE + OTHERS)), train.batch(torch.arange(600))


def sent(how: Setting, net: nn.Module, batch: Batch) -> dict[str, Tensor]:
    """The client's update, by the trainer of the simulation."""
    architecture = Architecture.of(keep(net), (1, 8, 8), how.task)
    model = build(architecture)
    train = LocalTraining(
        kind=how.sends,
        batch_size=how.told.get("batch_size", len(batch)),
        epochs=how.told.get("local_epochs", 1),
        learning_rate=0.1,
        training=how.training,
    )
    return dict(train(model, batch, rng=Rng.root(0)).tensors)


def measured(how: Setting, number: int, *, told: bool, pool: Batch, public: Batch) -> dict[str, Any]:
    """One update, attacked."""
    rows = torch.arange(SIZE) + SIZE * number
    batch, net = pool.pick(rows), network(norm=how.norm, seed=number)
    update = sent(how, copy.deepcopy(net), batch)
    seen = gh.view(
        net,
        update,
        input_shape=(1, 8, 8),
        examples=SIZE,
        sends=how.sends,
        learning_rate=0.1,
        task=how.task if told else None,
        training=how.training if told else None,
        **(how.told if told else how.untold),
    )
    answers: dict[str, Any] = {}
    try:
        labels: Any = gh.attack("label_inference")(seen)[0]
        true = batch.labels.bincount(minlength=10)
        answers["labels"] = float(torch.minimum(labels.counts, true).sum() / SIZE)
        claim: Any = gh.attack("inverting_gradients", search=SEARCH)(seen, seed=number)[0]
    except GlasshouseError as error:
        return {**answers, "refused": error.needs}
    others = torch.cat([batch.inputs, pool.inputs[UPDATES * SIZE :][: OTHERS - 1]])
    answers["psnr"] = matched(claim.inputs, batch.inputs)
    answers["named"] = named(claim.inputs, batch.inputs, others[SIZE:])
    mean = public.inputs.mean(0, keepdim=True).expand_as(batch.inputs)
    answers["null"] = matched(mean, batch.inputs)
    usual = public.labels.bincount(minlength=10).argsort(descending=True)[:SIZE]
    answers["null labels"] = float(
        torch.minimum(usual.bincount(minlength=10), batch.labels.bincount(minlength=10)).sum() / SIZE
    )
    return answers


def assigned(claimed: Tensor, true: Tensor) -> list[tuple[int, int, float]]:
    """(claimed, true, squared error) of the best assignment."""
    errors = ((claimed[:, None] - true[None]) ** 2).flatten(2).mean(2)
    rows, columns = linear_sum_assignment(errors.numpy())
    return [(int(i), int(j), float(errors[i, j])) for i, j in zip(rows, columns, strict=True)]


def matched(claimed: Tensor, true: Tensor) -> float:
    """Mean PSNR of the best assignment, dB."""
    return float(np.mean([-10 * math.log10(max(e, 1e-10)) for _, _, e in assigned(claimed, true)]))


def named(claimed: Tensor, true: Tensor, others: Tensor) -> float:
    """Share of the originals whose claim is nearer to them than to 99 other digits."""
    nearest = []
    for i, _, error in assigned(claimed, true):
        nearest.append(error < float(((claimed[i] - others) ** 2).flatten(1).mean(1).min()))
    return float(np.mean(nearest))


def pieces(done: dict[tuple[str, int, bool], dict[str, Any]]) -> Iterator[tuple[str, int, bool]]:
    """What is left to do, kind by kind within each update, so that an early stop has all kinds."""
    for number in range(UPDATES):
        for kind in SETTINGS:
            for told in (True, False):
                if (kind, number, told) not in done:
                    yield kind, number, told


def interval(values: list[float]) -> str:
    """Mean and its 95 % interval over updates, by the bootstrap."""
    if len(set(values)) < 2:
        return f"{np.mean(values):.2f}"
    ends = bootstrap((np.array(values),), np.mean, rng=np.random.default_rng(0)).confidence_interval
    return f"{np.mean(values):.2f} [{ends.low:.2f}, {ends.high:.2f}]"


def table(done: dict[tuple[str, int, bool], dict[str, Any]]) -> Iterator[str]:
    """The page's table."""
    yield "| clients train by | told | n | PSNR, dB | gain over the mean digit | named among 100 | labels |"
    yield "|---|---|---|---|---|---|---|"
    for kind in SETTINGS:
        for told in (True, False):
            rows = [row for (k, _, t), row in done.items() if (k, t) == (kind, told)]
            ran = [row for row in rows if "psnr" in row]
            if not ran:
                continue
            columns: list[Callable[[dict[str, Any]], float]] = [
                lambda row: row["psnr"],
                lambda row: row["psnr"] - row["null"],
                lambda row: row["named"],
                lambda row: row["labels"],
            ]
            cells = [interval([column(row) for row in ran]) for column in columns]
            yield f"| {kind} | {'yes' if told else 'no'} | {len(ran)} | {' | '.join(cells)} |"
    nulls = [row for row in done.values() if "null" in row]
    yield f"Nulls: mean digit {interval([r['null'] for r in nulls])} dB, usual labels "
    yield interval([r["null labels"] for r in nulls])


NOISES = (0.0, 1.0)
"""Noise on every entry of the update, in units of a gradient; running statistics have none."""


def statistics_read(number: int, *, noise: float, read: bool, pool: Batch) -> dict[str, Any]:
    """One digit, one step in training mode: GradInversion with the client's running statistics or without."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(number)
        net = nn.Sequential(
            *(nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU()),
            *(nn.Conv2d(8, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU()),
            nn.Flatten(),
            nn.Linear(1024, 10),
        )
    batch, how = pool.pick(torch.tensor([number])), Training(mode="training")
    model = build(Architecture.of(keep(net), (1, 8, 8), PLAIN))
    train = LocalTraining(kind="delta", batch_size=1, learning_rate=1.0, training=how)
    done = train(model, batch, rng=Rng.root(0))
    draws = Rng.root(number).child("noise").torch()
    update = {n: t + noise * torch.randn(t.shape, generator=draws) for n, t in done.tensors.items()}
    seen = gh.view(net, update, input_shape=(1, 8, 8), sends="delta", learning_rate=1.0, training=how)
    (one,) = seen.rounds
    with_buffers = {c: replace(u, buffers=done.buffers if read else {}) for c, u in one.updates.items()}
    seen = replace(seen, rounds=(replace(one, updates=with_buffers),))
    attack = gh.attack("gradinversion", search={"iterations": 200, "restarts": 1}, group=0.0, batch_norm=10.0)
    claim: Any = attack(seen, seed=number)[0]
    others = pool.inputs[UPDATES * SIZE :][: OTHERS - 1]
    read_off = replica(seen, subject="statistics").batch_statistics()
    with torch.no_grad():
        inside = net[0](batch.inputs).transpose(0, 1).flatten(1)
    wrong = float((read_off["1.mean"] - inside.mean(1)).abs().max()) if read else 0.0
    return {
        "named": named(claim.inputs, batch.inputs, others),
        "psnr": matched(claim.inputs, batch.inputs),
        "mean error": wrong,
    }


def found_among(number: int, pool: Batch) -> bool:
    """Whether the running statistics alone pick the client's digit among it and 99 others."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(number)
        net = nn.Sequential(
            *(nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(512, 10))
        )
    batch, how = pool.pick(torch.tensor([number])), Training(mode="training")
    model = build(Architecture.of(keep(net), (1, 8, 8), PLAIN))
    done = LocalTraining(kind="delta", batch_size=1, training=how)(model, batch, rng=Rng.root(0))
    read = (done.buffers["1.running_mean"] / 0.1, (done.buffers["1.running_var"] - 0.9) / 0.1)
    candidates = torch.cat([batch.inputs, pool.inputs[UPDATES * SIZE :][: OTHERS - 1]])
    with torch.no_grad():
        inside = net[0](candidates).flatten(2)
    far = (inside.mean(2) - read[0]).square().sum(1) + (inside.var(2) - read[1]).square().sum(1)
    return int(far.argmin()) == 0


def statistics_table(out: Path, pool: Batch) -> Iterator[str]:
    """The row of the page on running statistics; measures what is left."""
    log, done = out / "statistics.jsonl", {}
    for line in log.read_text().splitlines() if log.exists() else ():
        row = json.loads(line)
        done[row["update"], row["noise"], row["read"]] = row
    yield "| noise | statistics | n | named among 100 | PSNR, dB | largest error of a mean |"
    yield "|---|---|---|---|---|---|"
    for noise in NOISES:
        for read in (True, False):
            rows = []
            for number in range(UPDATES):
                if (number, noise, read) not in done:
                    answers = statistics_read(number, noise=noise, read=read, pool=pool)
                    row = {"update": number, "noise": noise, "read": read, **answers}
                    done[number, noise, read] = row
                    with log.open("a") as file:
                        file.write(json.dumps(row) + "\n")
                rows.append(done[number, noise, read])
            cells = [interval([row[key] for row in rows]) for key in ("named", "psnr")]
            worst = max(row["mean error"] for row in rows)
            words = "read" if read else "not read"
            yield f"| {noise:g} | {words} | {len(rows)} | {' | '.join(cells)} | {worst:.1e} |"


WAYS = {
    "plain": "cross-entropy",
    "smoothing 0.2": "label smoothing of 0.1",
    "binary cross-entropy": "binary cross-entropy",
    "mean squared error": "mean squared error",
    "focal, gamma 2": "focal loss, gamma = 2",
    "batch norm in training mode": "cross-entropy, mode training",
}
"""What ``gh.explain`` should call a setting, of which it is told nothing."""
EXPLAINED = 3
"""Updates of each that are explained."""


def explained(pool: Batch) -> str:
    """How often the client's way is among those that explain its update about equally well."""
    right, wrong = 0, 0
    for kind, words in WAYS.items():
        for number in range(EXPLAINED):
            how, batch = SETTINGS[kind], pool.pick(torch.arange(SIZE) + SIZE * number)
            net = network(norm=how.norm, seed=number)
            update = sent(how, copy.deepcopy(net), batch)
            tried = gh.explain(gh.view(net, update, input_shape=(1, 8, 8), examples=SIZE))
            likely = [one.words for one in tried if one.likely]
            right += words in likely
            wrong += any(family(one) != family(words) for one in likely)
    return f"explained: {right} of {EXPLAINED * len(WAYS)}; beside another family of losses in {wrong}"


def family(words: str) -> str:
    """Losses of one family show labels alike; the mode counts, too."""
    loss, _, mode = words.partition(", mode ")
    first = loss.split()[0]
    return f"{first if first in ('binary', 'mean') else 'softmax'} {mode}"


def main() -> None:
    """Measure what is left and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("runs/training"))
    out: Path = parser.parse_args().out
    out.mkdir(parents=True, exist_ok=True)
    log, done = out / "pieces.jsonl", {}
    if log.exists():
        for line in log.read_text().splitlines():
            row = json.loads(line)
            done[row["kind"], row["update"], row["told"]] = row
    pool, public = digits()
    for kind, number, told in list(pieces(done)):
        answers = measured(SETTINGS[kind], number, told=told, pool=pool, public=public)
        row = {"kind": kind, "update": number, "told": told, **answers}
        done[kind, number, told] = row
        with log.open("a") as file:
            file.write(json.dumps(row) + "\n")
    print("\n".join(table(done)))
    print("\n".join(statistics_table(out, pool)))
    print("found by statistics alone:", sum(found_among(number, pool) for number in range(UPDATES)))
    print(explained(pool))


if __name__ == "__main__":
    main()
