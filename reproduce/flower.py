"""Audits of captured Flower runs on CIFAR-10, and the overhead of capture: rows of docs/results/flower.md.

``python -m reproduce.flower RUN --out FOLDER`` with RUN ``plain``, ``dp``, ``sums`` or ``crafted`` runs a
federation of Flower apps in this process, captures it, collects the records of its test clients, and audits
it; ``overhead`` measures the seconds and bytes that capture adds to a round. Existing runs are not repeated.
"""

import argparse
import random
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from flwr.app import Context, Message, MetricRecord, RecordDict
from flwr.client.mod import secaggplus_mod
from flwr.clientapp import ClientApp
from flwr.clientapp.mod import LocalDpMod
from flwr.serverapp import ServerApp
from torch import Tensor

from glasshouse.attacks.linear.scale_mia.attack import ScaleMia
from glasshouse.audit.captured.collect import collect
from glasshouse.audit.captured.tables import captured_tables
from glasshouse.audit.run import audit
from glasshouse.data.sources import load as load_source
from glasshouse.data.splits import RoleRequest, deal
from glasshouse.integrations.flower import capture, truth_mod
from glasshouse.integrations.flower.in_process import InProcessGrid, run_in_process
from glasshouse.models import build as models
from glasshouse.report.html import write_html
from glasshouse.results.records import Result
from glasshouse.rng import Rng
from glasshouse.scenario.load import load
from glasshouse.store import write_tensors
from glasshouse.transcript.grants import Grants
from glasshouse.transcript.threat import Threat
from glasshouse.transcript.view import RoundView, View
from glasshouse.wire import Architecture, Batch, Broadcast, Terms
from reproduce.flower_apps import (
    RATE,
    Crafting,
    MaliciousFedAvg,
    averaging,
    message_client,
    numpy_client,
    secure_server,
    server,
)

COMMON = """
name = "flower-{name}"
[data]
source = "cifar10"
images_are_public = true
auxiliary = {auxiliary}
auxiliary_split = "train"
heldout = 200
heldout_split = "train"
[audit]
metrics = [{metrics}]
utility = false
{audit}
"""
ATTACKS = """
[[attacks]]
name = "label_inference"
[[attacks]]
name = "inverting_gradients"
search.iterations = 400
search.restarts = 1
"""
PROLIN = """
[[attacks]]
name = "ols"
looks_for = "attribute"
settings = { label = 3 }
method = { pairs = 100, pool = 600 }
[[attacks]]
name = "prolin"
looks_for = "attribute"
settings = { label = 3 }
method = { pairs = 100, pool = 600 }
"""


def architecture(name: str) -> Architecture:
    """A model of the zoo for CIFAR-10."""
    return Architecture.of(name, (3, 32, 32), 10)


def private(images: int, label: int | None = None, seed: int = 0) -> Batch:
    """Images of the test split, optionally of one class ``label``."""
    want = RoleRequest(size=images, split="test", classes=() if label is None else (label,))
    batch = deal(load_source("cifar10"), {"private": want}, rng=Rng.root(seed)).private
    assert batch is not None
    return batch


def play(
    out: Path,
    app: ServerApp,
    client: Callable[..., ClientApp],
    *,
    model: Architecture,
    shards: list[Batch],
    mods: list[Any],
    batch_size: int | None = None,
) -> None:
    """Run and capture a federation of test clients, and collect their records.

    ``batch_size``: images per step; None: all images of a client.
    """
    apps = dict.fromkeys(
        range(1, len(shards) + 1), client(model, shards, [*mods, truth_mod(out / "clients")])
    )
    terms = {"batch_size": batch_size or len(shards[0]), "learning_rate": RATE}
    captured = capture(app, out / "capture", model=model, terms=terms)
    random.seed(0)  # Flower draws cohorts, noise and the rounding of SecAgg+ from the global generators
    np.random.seed(0)  # noqa: NPY002 — the global one is what Flower draws from
    run_in_process(captured, InProcessGrid(apps=apps))
    collect(out / "capture", [out / "clients"])


def start_of(model: Architecture) -> dict[str, Tensor]:
    """The initial weights."""
    return models.state(models.build(model, rng=Rng.root(1)))


def plain(out: Path, mods: list[Any] | None = None) -> str:
    """Twenty clients with four images each, one step, no defence; returns the scenario to audit it with."""
    model = architecture("lenet_sigmoid")
    pool = private(80)
    shards = [pool.pick(rows) for rows in torch.arange(80).split(4)]
    if not (out / "capture").exists():
        play(out, server(start_of(model), 1), message_client, model=model, shards=shards, mods=mods or [])
    metrics = '"label_accuracy", "psnr", "identification"'
    return COMMON.format(name="plain", auxiliary=400, metrics=metrics, audit="victims = 20") + ATTACKS


def dp(out: Path) -> str:
    """Like :func:`plain`, with Flower's local differential privacy: clipped to 1, ε = 10 per round."""
    text = plain(out, [LocalDpMod(clipping_norm=1.0, sensitivity=1.0, epsilon=10.0, delta=1e-5)])
    return text.replace("flower-plain", "flower-dp")


def crafted(out: Path, **quantisation: Any) -> str:
    """SecAgg+ over eight clients with eight new images in each of ten rounds, under scale_mia's server."""
    model, rounds, each = architecture("scale_mia_cnn"), 10, 8
    pool = private(8 * rounds * each, seed=2)
    shards = [pool.pick(rows) for rows in torch.arange(len(pool)).split(rounds * each)]
    if not (out / "capture").exists():
        want = {"auxiliary": RoleRequest(size=5000, split="train")}
        auxiliary = deal(load_source("cifar10"), want, rng=Rng.root(7)).auxiliary
        terms = Terms(
            protocol="fedavg",
            architecture=model,
            sends="parameters",
            clients=8,
            cohort=8,
            batch_size=each,
            learning_rate=RATE,
            secure_sum=True,
        )
        honest = Broadcast(round=0, architecture=model, tensors=start_of(model))
        view = View(
            terms=terms,
            threat=Threat(changes=frozenset({"parameters"})),
            rounds=(RoundView(round=0, broadcast=honest),),
            grants=Grants(auxiliary=auxiliary),
        )
        crafting = Crafting(ScaleMia(), view)
        play(
            out,
            secure_server(MaliciousFedAvg(crafting), rounds, **quantisation),
            partial(numpy_client, each=each),
            model=model,
            shards=shards,
            mods=[secaggplus_mod],
            batch_size=each,
        )
        write_tensors(out / "capture/adversary/memory.safetensors", crafting.memory)
    metrics = '"rate_paper", "rate_blind"'
    rows = f"rounds = {list(range(rounds))}"
    text = COMMON.format(name=out.name, auxiliary=5000, metrics=metrics, audit=rows)
    return text + '[threat]\nchanges = ["parameters"]\n[[attacks]]\nname = "scale_mia"\n'


def sums(out: Path) -> str:
    """SecAgg+ over 60 rounds with 10 of 30 clients; the attack must find the 5 that hold one class."""
    model = architecture("lenet5")
    pool, cats = private(25 * 8, seed=4), private(5 * 8, label=3, seed=5)
    shards = [cats.pick(rows) for rows in torch.arange(40).split(8)]
    shards += [pool.pick(rows) for rows in torch.arange(200).split(8)]
    if not (out / "capture").exists():
        play(
            out,
            secure_server(averaging(start_of(model), cohort=1 / 3), 60, max_weight=100.0),
            numpy_client,
            model=model,
            shards=shards,
            mods=[secaggplus_mod],
        )
    metrics = '"auc", "f1", "precision", "recall", "label_accuracy", "psnr", "identification"'
    text = COMMON.format(name="sums", auxiliary=2000, metrics=metrics, audit="rounds = [-1]")
    return text + PROLIN + ATTACKS


def overhead(out: Path) -> None:
    """Seconds and bytes that capture adds to a round of ten idle clients."""
    del out
    for name in ("lenet5", "resnet18"):
        model = architecture(name)
        start = start_of(model)
        size = sum(t.nbytes for t in start.values())
        reply = ClientApp()

        @reply.train()
        def _echo(message: Message, context: Context) -> Message:
            del context
            arrays, metrics = message.content["arrays"], MetricRecord({"num-examples": 1})
            return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)

        seconds = {}
        for captured in (False, True):
            with tempfile.TemporaryDirectory() as folder:
                app = server(start, 3)
                if captured:
                    app = capture(app, folder, model=model, terms={"batch_size": 1})
                began = time.perf_counter(), time.process_time()
                run_in_process(app, InProcessGrid(apps=dict.fromkeys(range(1, 11), reply)))
                seconds[captured] = (time.perf_counter() - began[0], time.process_time() - began[1])
                files = [f for f in Path(folder).rglob("*") if f.is_file()]
                stored = sum(f.stat().st_size for f in files)
        wall, cpu = ((seconds[True][i] - seconds[False][i]) / 3 for i in (0, 1))
        print(
            f"{name:9} {size / 2**20:6.2f} MiB a model: {wall:.2f} s ({cpu:.2f} CPU s) and "
            f"{stored / 3 / 2**20:.1f} MiB a round of 10 clients"
        )


RUNS = {
    "plain": plain,
    "dp": dp,
    "sums": sums,
    "crafted": partial(crafted, max_weight=8.0, clipping_range=0.01),
    "crafted-default": crafted,
}


def table(result: Result) -> None:
    """Print one row per finding, then the refusals."""
    for f in result.findings:
        print(
            f"{f.attack:20} {f.metric:15} {f.value:.3g} [{f.low:.3g}, {f.high:.3g}] n = {f.n}; "
            f"null {f.baseline_value:.3g} ({f.baseline}); "
            f"gain {f.gain:.3g} [{f.gain_low:.3g}, {f.gain_high:.3g}]; {f.verdict}"
        )
    for refusal in result.refusals:
        print(f"refused: {refusal.subject}: {refusal.needs}; got {refusal.got}")
    for note in result.threats[0].notes:
        print(note)


def main() -> int:
    """Run, audit and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", choices=[*RUNS, "overhead"])
    parser.add_argument("--out", type=Path, default=Path("runs/flower"))
    given = parser.parse_args()
    if given.run == "overhead":
        overhead(given.out)
        return 0
    out = given.out / given.run
    text = RUNS[given.run](out)
    (out / "audit.toml").write_text(text)
    suite = load(str(out / "audit.toml"), captured=captured_tables(out / "capture"))
    place = out / "audit"
    table(audit(suite, out=place, jobs=1, resume=place.exists()))
    print(write_html(place))
    return 0


if __name__ == "__main__":
    sys.exit(main())
