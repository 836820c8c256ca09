"""Attacks on secure sums, CIFAR-10 test images: success rates over batches, effect of defences, and cost.

Run with ``python reproduce/scale_mia.py ROW ...`` (names below; ``all`` for all); each row appends one line
of JSON to ``--out``. The attack runs against the federation as in an audit (craft, round, sum, read-out),
without the audit's null baselines, controls and files. The autoencoder is trained on the 10,000 train images
of ``cifar10_12k.npz`` and cached; evaluation is on the 2,000 test images.
"""

import argparse
import itertools
import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from glasshouse.attacks.base import About, Reconstruction
from glasshouse.data.sources import load as load_data
from glasshouse.errors import GlasshouseError
from glasshouse.federation.setting import Setting
from glasshouse.metrics.attribution import NOT_RECOVERED, said_of_recovered
from glasshouse.metrics.base import ScoreContext
from glasshouse.metrics.match import assign, best, mse_table
from glasshouse.metrics.statistics.interval import mean_interval
from glasshouse.models import build as models
from glasshouse.process import prepare_process
from glasshouse.registry import create, load
from glasshouse.rng import Rng
from glasshouse.testing.toys import Recorder
from glasshouse.transcript.cut import cut
from glasshouse.transcript.grants import Grants
from glasshouse.transcript.record import Keep, Log
from glasshouse.transcript.threat import Threat
from glasshouse.transcript.view import RoundView, View
from glasshouse.wire import Architecture, Batch, Broadcast, Terms

CIFAR = "cifar10"
MNIST = "mnist"
ORL = "orl"
CONTEXT = ScoreContext(classes=10)
FAMILIES: Mapping[str, Mapping[str, Any]] = {
    "alexnet": {"steps": 3000, "batch_size": 32, "learning_rate": 2e-3},
    "resnet": {"steps": 1000, "batch_size": 32, "learning_rate": 2e-3},
    "vgg": {"steps": 4500, "batch_size": 64, "learning_rate": 2e-3},
    "vit": {"steps": 10_000, "batch_size": 64, "learning_rate": 1e-3},
}
"""Training budgets of the larger autoencoders, all in bfloat16."""


def one_batch(
    row: Mapping[str, Any], pool: Batch, auxiliary: Batch, number: int, *, crafted: Any, classes: int
) -> dict[str, float]:
    """One round on one batch of evaluation images: rates, PSNR of successes, labels, attribution."""
    rng = Rng.root(number, salt="benchmark")
    clients, size = row.get("clients", 8), row["m"]
    rows = torch.randperm(len(pool), generator=rng.child("deal").torch())[:size]
    private = pool.pick(rows)
    each = size // clients
    fields = {
        "sends": "gradient",
        "protocol": "fedsgd",
        "batch_size": each,
        "secure_sum": True,
        **row.get("terms", {}),
    }
    model = row.get("model", "scale_mia_cnn")
    shape = tuple(pool.inputs.shape[1:])
    architecture = Architecture.of(model, shape, classes)
    terms = Terms(architecture=architecture, clients=clients, cohort=clients, **fields)
    start = models.state(models.build(architecture, rng=Rng.root(0).child("model")))
    attack = create(load("attacks", row.get("attack", "scale_mia")), row.get("arguments", {}))
    honest = Broadcast(round=0, architecture=architecture, tensors=start)
    grants = Grants(auxiliary=auxiliary)
    if not crafted:
        view = View(
            terms=terms, threat=Threat(), rounds=(RoundView(round=0, broadcast=honest),), grants=grants
        )
        crafted.append(attack.craft(view, rng=Rng.root(0).child("attack")))
    sent = crafted[0]
    setting = Setting(
        terms=terms,
        rounds=1,
        private=private.pick(torch.arange(each * clients)),
        shards=tuple(torch.arange(each * clients).split(each)),
        start=start,
        build=models.build,
        defenses=tuple(
            load("defenses", name)(**arguments) for name, arguments in row.get("defenses", {}).items()
        ),
        dropout=row.get("dropout", 0.0),
    )
    log = Log(terms=terms, keep=Keep())
    began = time.process_time()
    load("protocols", terms.protocol)().play(
        setting, recorder=Recorder(log), rng=rng.child("federation"), tamper=lambda _: sent
    )
    played = time.process_time()
    result = cut(
        log.transcript(),
        threat=Threat(),
        grants=grants,
        own={},
        memory=dict(sent.memory),
        rounds=(0,),
        client=None,
    )
    claims = attack.run(result, rng=rng.child("attack"))
    done = time.process_time()
    dropped = result.rounds[0].aggregate.dropped if result.rounds[0].aggregate else ()
    kept = torch.tensor([i for i in range(each * clients) if i // each not in dropped])
    remaining = setting.private.pick(kept)
    scored = score(claims, remaining, kept // each)
    guess = class_means(auxiliary, len(remaining), classes, rng=rng.child("null"))
    null = score((guess,), remaining, kept // each)["blind"]
    return {**scored, "null": null, "round_s": played - began, "read_s": done - played}


def class_means(auxiliary: Batch, count: int, classes: int, *, rng: Rng) -> Reconstruction:
    """The null adversary: for each image of the sum, the mean auxiliary image of a guessed class."""
    labels = torch.randint(classes, (count,), generator=rng.torch())
    known = [c for c in range(classes) if bool((auxiliary.labels == c).any())]
    means = {c: auxiliary.inputs[auxiliary.labels == c].mean(0) for c in known}
    inputs = torch.stack([means[known[int(c) % len(known)]] for c in labels])
    return Reconstruction(
        about=About(rounds=(0,)), inputs=inputs, labels=labels, confidence=torch.ones(count)
    )


def score(claims: tuple[Any, ...], private: Batch, owners: torch.Tensor) -> dict[str, float]:
    """Scores of one batch. Shares of correct labels and owners are among recovered examples."""
    out = {"paper": 0.0, "blind": 0.0, "psnr": float("nan"), "labels": float("nan"), "owners": float("nan")}
    items = [c for c in claims if isinstance(c, Reconstruction)]
    if not items:
        return {**out, "claimed": 0.0}
    claim = items[0]
    table = mse_table(private.inputs.double(), claim.inputs.double())
    quality = {}
    for name, pairing in (("paper", best(table)), ("blind", assign(table))):
        error = np.array([table[i, j] if j >= 0 else 1.0 for i, j in enumerate(pairing)])
        quality[name] = -10 * np.log10(np.maximum(error, 1e-10))
        out[name] = float((quality[name] > 18).mean())
    good = quality["blind"] > 18
    out["psnr"] = float(quality["blind"][good].mean()) if good.any() else float("nan")
    for name, result, true in (("labels", claim.labels, private.labels), ("owners", claim.source, owners)):
        if result is not None and good.any():
            tensor = said_of_recovered(claim.inputs, result, private.inputs, context=CONTEXT)
            judged = tensor != NOT_RECOVERED
            out[name] = float((tensor == true)[judged].double().mean())
    return {**out, "claimed": float(len(claim.inputs))}


def rows() -> dict[str, dict[str, Any]]:
    """Every row of the tables, by name."""
    tables: dict[str, dict[str, Any]] = {}
    parameters = {"protocol": "fedavg", "sends": "parameters"}
    for m in (64, 128, 256, 512, 1024):
        tables[f"gradient-{m}"] = {"m": m}
        tables[f"paper-{m}"] = {"m": m, "arguments": {"design": "paper"}}
        tables[f"parameters-{m}"] = {"m": m, "terms": parameters}
        for steps in (3, 5):
            tables[f"steps{steps}-{m}"] = {
                "m": m,
                "terms": {"protocol": "fedavg", "sends": "delta", "local_epochs": steps},
            }
    for m in (64, 256):
        halves = {"protocol": "fedavg", "sends": "delta", "batch_size": m // 16}
        tables[f"mini-{m}"] = {"m": m, "terms": halves, "arguments": {"local_steps": 2}}
        tables[f"smoothed-{m}"] = {"m": m, "arguments": {"fit": "smoothed"}}
    for (family, budget), m in itertools.product(FAMILIES.items(), (64, 128, 256, 512)):
        arguments = {"training": {"bfloat16": True, **budget}}
        tables[f"{family}-{m}"] = {"m": m, "model": f"scale_mia_{family}", "arguments": arguments}
    tables |= _data_rows() | _comparison_rows() | _batches_rows()
    for clients in (1, 5, 10, 30, 100):
        tables[f"clients-{clients}"] = {"m": 300, "clients": clients}
    for share in (0.1, 0.3):
        tables[f"dropout-{share}"] = {"m": 64, "dropout": share}
    for sigma in (1e-8, 1e-7, 1e-6, 1e-5, 1e-4):
        noise = {"gaussian_noise": {"std": sigma}}
        tables[f"noise-{sigma:.0e}"] = {"m": 64, "defenses": noise}
        tables[f"noise-expected-{sigma:.0e}"] = {"m": 64, "defenses": noise, "arguments": {"span": 2.0}}
    for bits, bound in itertools.product((8, 12, 16, 24, 32), (0.01,)):
        tables[f"quantised-{bits}"] = {"m": 64, "terms": {"options": {"sum_bits": bits, "sum_bound": bound}}}
    private = {"clip": 1.0, "delta": 1e-5}
    tables["dp-epsilon-1"] = {"m": 64, "defenses": {"dp_sgd": {**private, "epsilon": 1.0}}}
    tables["dp-no-noise"] = {"m": 64, "defenses": {"dp_sgd": {**private, "noise_multiplier": 1e-9}}}
    for epsilon in (1.0, 8.0, 1000.0):
        budget = {"clip": 1.0, "epsilon": epsilon, "delta": 1e-5}
        tables[f"update-dp-{epsilon:g}"] = {"m": 64, "defenses": {"gaussian_mechanism": budget}}
    tables["update-clip"] = {"m": 64, "defenses": {"clip": {"norm": 1.0}}}
    for m in (64, 256):
        for variant in ("linear", "sparse"):
            tables[f"rtf-{variant}-{m}"] = {
                "m": m,
                "attack": "robbing_the_fed",
                "arguments": {"variant": variant},
            }
    local = {"protocol": "fedavg", "sends": "delta", "local_epochs": 3}
    tables["loki-64"] = {"m": 64, "attack": "loki"}
    tables["loki-steps3-64"] = {"m": 64, "attack": "loki", "terms": local}
    tables["rtf-sparse-steps3-64"] = {
        "m": 64,
        "attack": "robbing_the_fed",
        "arguments": {"variant": "sparse"},
        "terms": local,
    }
    tables["rtf-linear-steps3-64"] = {"m": 64, "attack": "robbing_the_fed", "terms": local}
    return tables


def _data_rows() -> dict[str, dict[str, Any]]:
    """Variants of the attacker's data: other data sets, subsets, single classes, other classes."""
    tables: dict[str, dict[str, Any]] = {}
    brief = {"steps": 1500}
    short = {"training": brief}
    for kind, weight in (("", 0.0), ("-vae", 1e-3)):
        arguments = {**brief, "variational": weight}
        for m in (64, 128, 256, 512):
            tables[f"mnist{kind}-{m}"] = {"m": m, "data": MNIST, "arguments": {"training": arguments}}
        small = {**arguments, "steps": 600, "batch_size": 32, "learning_rate": 4e-3}
        for m in (64, 128):
            tables[f"orl{kind}-{m}"] = {"m": m, "data": ORL, "people": 25, "arguments": {"training": small}}
    for count, m in itertools.product((100, 500, 1500, 5000, 10_000), (16, 64, 256)):
        tables[f"auxiliary-{count}-{m}"] = {"m": m, "auxiliary": count, "arguments": short}
    for known in ((1,), (1, 9), (1, 9, 6)):  # automobile, truck, frog
        row = {"m": 64, "auxiliary_classes": known, "private_classes": known, "arguments": short}
        tables[f"classes-{len(known)}"] = row
    for name, target in (("near", 9), ("far", 6)):
        row = {"m": 64, "auxiliary_classes": (1,), "private_classes": (target,), "arguments": short}
        tables[f"skew-{name}"] = row
    return tables


def _batches_rows() -> dict[str, dict[str, Any]]:
    """Clients that step on several batches of their eight images."""
    tables: dict[str, dict[str, Any]] = {}
    for batches, epochs in itertools.product((2, 4, 8), (1, 3)):
        name = f"batches{batches}-64" if epochs == 1 else f"batches{batches}-epochs{epochs}-64"
        each = {"protocol": "fedavg", "sends": "delta", "batch_size": 8 // batches, "local_epochs": epochs}
        told = {"local_steps": batches}
        tables[name] = {"m": 64, "terms": each, "arguments": {**told, "training": {"steps": 600}}}
        tables[f"loki-{name}"] = {"m": 64, "attack": "loki", "terms": each, "arguments": {**told, "width": 8}}
    return tables


def _comparison_rows() -> dict[str, dict[str, Any]]:
    """Closed-form attacks on 1 to 256 images, and LOKI's width."""
    tables: dict[str, dict[str, Any]] = {}
    for attack, m in itertools.product(("scale_mia", "robbing_the_fed", "loki"), (1, 2, 4, 8, 16, 64, 256)):
        tables[f"table-{attack}-{m}"] = {"m": m, "clients": min(m, 8), "attack": attack}
    for width in (1, 2, 4, 8, 16):
        tables[f"loki-width-{width}"] = {"m": 64, "attack": "loki", "arguments": {"width": width}}
    return tables


def parts(row: Mapping[str, Any], split: str) -> tuple[Batch, Batch, int]:
    """Evaluation images, auxiliary images, number of classes."""
    source = load_data(row.get("data", CIFAR))
    if "people" in row:  # labels are people: the two sides share none
        everybody = source.split("train").batch()
        known = everybody.labels < row["people"]
        return everybody.pick((~known).nonzero()[:, 0]), everybody.pick(known.nonzero()[:, 0]), source.classes
    auxiliary, pool = source.split("train").batch(), source.split("test").batch()
    order = torch.randperm(len(auxiliary), generator=Rng.root(0, salt="tuning").torch())
    if split == "train":
        pool, auxiliary = auxiliary.pick(order[-1000:]), auxiliary.pick(order[:-1000])
    elif "auxiliary" in row:
        auxiliary = auxiliary.pick(order[: row["auxiliary"]])
    return _of(pool, row.get("private_classes")), _of(auxiliary, row.get("auxiliary_classes")), source.classes


def _of(batch: Batch, classes: tuple[int, ...] | None) -> Batch:
    if classes is None:
        return batch
    return batch.pick(torch.isin(batch.labels, torch.tensor(classes)).nonzero()[:, 0])


def main() -> None:
    """Run the requested rows."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("rows", nargs="+")
    parser.add_argument("--batches", type=int, default=20)
    parser.add_argument("--out", default="scale_mia.jsonl")
    parser.add_argument("--arguments", default="{}", help="of the attack, as JSON, on top of the row's")
    parser.add_argument("--split", default="test", help="train: the last 1,000 train images, for tuning")
    given = parser.parse_args()
    prepare_process()
    known = rows()
    for name in known if given.rows == ["all"] else given.rows:
        row = dict(known[name])
        row["arguments"] = {**row.get("arguments", {}), **json.loads(given.arguments)}
        pool, auxiliary, classes = parts(row, given.split)
        crafted: list[Any] = []
        tables: list[dict[str, float]] = []
        try:
            tables = [
                one_batch(row, pool, auxiliary, number, crafted=crafted, classes=classes)
                for number in range(given.batches)
            ]
        except GlasshouseError as error:
            line: dict[str, Any] = {"row": name, "refused": str(error)}
        else:
            line = {"row": name, "batches": len(tables), "split": given.split}
            for key in tables[0]:
                values = [
                    f[key] for f in tables if f[key] == f[key]
                ]  # without NaN: batches with nothing recovered
                if len(values) < 2:
                    line[key] = values[0] if values else None
                    continue
                interval = mean_interval(values, rng=Rng.root(0))
                line[key] = [round(v, 4) for v in (interval.value, interval.low, interval.high)]
        with Path(given.out).open("a") as file:
            file.write(json.dumps(line) + "\n")
        print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
