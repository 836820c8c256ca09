"""The attacks of docs/results/active.md on CIFAR-10: ``python -m benchmarks.active WHAT --out FOLDER``.

``spear``: exact batches against batch size and layer width, each piece at most ``--limit`` CPU seconds. What
a piece found is one line in FOLDER; a piece that is there is not run again. ``table`` prints what is there.
Test images judge; the defaults of the attacks were chosen on train images (``--split train``).
"""

import argparse
import json
import multiprocessing
import signal
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

import torch

from glasshouse.attacks.base import Claim, Reconstruction
from glasshouse.attacks.inversion.spear import Spear
from glasshouse.attacks.parts.readout.sparse_columns import ColumnSearch
from glasshouse.data.sources import load as load_data
from glasshouse.federation.setting import Setting
from glasshouse.metrics.match import assign, mse_table
from glasshouse.models import build as models
from glasshouse.process import prepare_process
from glasshouse.registry import load
from glasshouse.rng import Rng
from glasshouse.testing.toys import Recorder
from glasshouse.transcript.cut import cut
from glasshouse.transcript.grants import Grants
from glasshouse.transcript.record import Keep, Log
from glasshouse.transcript.threat import Threat
from glasshouse.transcript.view import RoundView, View
from glasshouse.wire import Architecture, Batch, Broadcast, Terms

EXACT = 1e-6
"""Mean squared error, in pixels of [0, 1], below which an image counts as exact (60 dB)."""
LARGE = 10**9
SPEAR: Mapping[str, Sequence[tuple[int, int]]] = {
    "descents": [
        *((b, 128) for b in (4, 8, 12, 16, 20)),
        *((b, 256) for b in (8, 16, 24, 32)),
        *((b, 512) for b in (16, 32, 48, 56)),
        *((b, 1024) for b in (32, 64, 80, 96)),
        *((b, 2048) for b in (64, 96, 128)),
    ],
    "sampling": [*((b, 512) for b in (4, 8, 12, 16, 18, 20, 22, 24))],
}
"""Batch and rows of the first layer; the second has 128."""


def cifar(split: str) -> Batch:
    """CIFAR-10 images of a split."""
    return load_data("cifar10").split(split).batch()


def play(
    attack: Any,
    private: Batch,
    *,
    clients: int,
    model: str,
    arguments: Mapping[str, Any],
    seed: int,
    **how: Any,
) -> tuple[tuple[Claim, ...], float]:
    """One round of FedSGD under ``attack``: its claims, and its own CPU seconds.

    Args:
        attack: as created.
        private: the clients' examples, in equal shares.
        clients: so many.
        model: registered name.
        arguments: of the model.
        seed: of the federation.
        how: ``auxiliary`` (a batch) and fields of :class:`glasshouse.wire.Terms`.
    """
    grants = Grants(auxiliary=how.pop("auxiliary", None))
    each = len(private) // clients
    shape = tuple(private.inputs.shape[1:])
    architecture = Architecture(name=model, input_shape=shape, classes=10, arguments=arguments)  # type: ignore[arg-type]
    fields: dict[str, Any] = {"protocol": "fedsgd", "sends": "gradient", "batch_size": each, **how}
    terms = Terms(architecture=architecture, clients=clients, cohort=clients, **fields)
    rng = Rng.root(seed, salt="benchmark")
    start = models.state(models.build(architecture, rng=rng.child("model")))
    before, crafted = time.process_time(), None
    if hasattr(attack, "craft"):
        honest = Broadcast(round=0, architecture=architecture, tensors=start)
        seen = View(
            terms=terms, threat=Threat(), rounds=(RoundView(round=0, broadcast=honest),), grants=grants
        )
        crafted = attack.craft(seen, rng=rng.child("craft"))
    spent = time.process_time() - before
    shards = tuple(torch.arange(each * clients).split(each))  # type: ignore[no-untyped-call]  # torch's own
    setting = Setting(
        terms=terms, rounds=1, private=private, shards=shards, start=start, build=models.build, defenses=()
    )
    log = Log(terms=terms, keep=Keep())
    protocol = load("protocols", terms.protocol)()
    protocol.play(setting, recorder=Recorder(log), rng=rng.child("federation"), tamper=lambda _: crafted)
    view = cut(
        log.transcript(),
        threat=Threat(),
        grants=grants,
        own={},
        memory=dict(crafted.memory) if crafted else {},
        rounds=(0,),
        client=0 if attack.needs.scope == "update" else None,
    )
    before = time.process_time()
    claims = attack.run(view, rng=rng.child("attack"))
    return claims, spent + time.process_time() - before


def errors(claims: tuple[Claim, ...], private: Batch) -> list[float]:
    """Mean squared error of every private image against the claimed one it is paired with; missed: 1."""
    (claim,) = (c for c in claims if isinstance(c, Reconstruction))
    if not len(claim.inputs):
        return [1.0] * len(private)
    table = mse_table(private.inputs.double(), claim.inputs.double())
    return [float(table[i, j]) if j >= 0 else 1.0 for i, j in enumerate(assign(table))]


def spear_piece(how: str, batch: int, rows: int, seed: int, split: str) -> dict[str, Any]:
    """One batch at the server: how many of its images are exact, and the CPU seconds that it took."""
    data = cifar(split)
    order = torch.randperm(len(data), generator=Rng.root(seed, salt="deal").torch())
    private = data.pick(order[:batch])
    budget = {"iterations": LARGE} if how == "descents" else {"iterations": 0, "draws": LARGE}
    attack = Spear(search=ColumnSearch(**budget))
    claims, spent = play(
        attack, private, clients=1, model="mlp", arguments={"hidden": f"{rows},128"}, seed=seed
    )
    found = sum(e < EXACT for e in errors(claims, private))
    return {"exact": found, "seconds": round(spent, 1)}


class OutOfTimeError(Exception):
    """A piece's CPU time is spent."""


def _stop(_signal: int, _frame: FrameType | None) -> None:
    raise OutOfTimeError


def spear_line(task: tuple[str, int, int, int, str, int, Path]) -> str:
    """Run one piece unless its file is there."""
    how, batch, rows, seed, split, limit, out = task
    file = out / f"spear-{how}-{batch}-{rows}-{seed}.json"
    if not file.exists():
        prepare_process()
        torch.set_num_threads(1)
        signal.signal(signal.SIGVTALRM, _stop)
        signal.setitimer(signal.ITIMER_VIRTUAL, limit)
        try:
            result = spear_piece(how, batch, rows, seed, split)
        except OutOfTimeError:
            result = {"exact": 0, "seconds": limit, "spent": True}
        finally:
            signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        line = {"how": how, "batch": batch, "rows": rows, "seed": seed, "split": split, **result}
        file.write_text(json.dumps(line) + "\n", encoding="utf-8")
    return file.read_text(encoding="utf-8").strip()


def spear(arguments: argparse.Namespace) -> None:
    """All pieces, cheapest first."""
    arguments.out.mkdir(parents=True, exist_ok=True)
    tasks = [
        (how, batch, rows, seed, arguments.split, arguments.limit, arguments.out)
        for how, cells in SPEAR.items()
        for batch, rows in cells
        for seed in range(arguments.seeds)
        if batch <= arguments.largest
    ]
    tasks.sort(key=lambda task: (task[1] ** 2 * task[2], task[3]))
    with multiprocessing.get_context("spawn").Pool(arguments.workers) as pool:
        for line in pool.imap_unordered(spear_line, tasks):
            print(line, flush=True)


def table(arguments: argparse.Namespace) -> None:
    """Whole batches that were exact, and the median CPU seconds, by search, rows and batch."""
    lines = [json.loads(f.read_text(encoding="utf-8")) for f in sorted(arguments.out.glob("spear-*.json"))]
    cells: dict[tuple[str, int, int], list[dict[str, Any]]] = {}
    for line in lines:
        cells.setdefault((line["how"], line["rows"], line["batch"]), []).append(line)
    print("| search | rows | batch | whole batches exact | images exact | CPU s, median |")
    print("|---|---|---|---|---|---|")
    for (how, rows, batch), group in sorted(cells.items()):
        whole = sum(g["exact"] == batch for g in group)
        share = sum(g["exact"] for g in group) / batch / len(group)
        seconds = sorted(g["seconds"] for g in group)[len(group) // 2]
        print(f"| {how} | {rows} | {batch} | {whole} of {len(group)} | {share:.3f} | {seconds} |")


def main() -> None:
    """Run what is asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("spear", "table"))
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--split", default="test", choices=("train", "test"))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--limit", type=int, default=600, help="CPU seconds of a piece")
    parser.add_argument("--largest", type=int, default=LARGE, help="batch")
    parser.add_argument("--workers", type=int, default=1)
    arguments = parser.parse_args()
    {"spear": spear, "table": table}[arguments.what](arguments)


if __name__ == "__main__":
    main()
