"""The attacks of docs/results/active.md on CIFAR-10: ``python -m reproduce.active WHAT --out FOLDER``.

``spear``: exact batches by batch size and layer width, each piece at most ``--limit`` CPU seconds. The result
of a piece is a file in FOLDER; existing pieces are not run again. ``table`` prints existing results. ``cah``
and ``fishing``: their tables. Evaluated on test images; the defaults of the attacks were chosen on train
images (``--split train``).
"""

import argparse
import json
import multiprocessing
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from benchmarks.active import cifar, play

from glasshouse.attacks.base import Claim, Reconstruction
from glasshouse.attacks.inversion.spear import Spear
from glasshouse.attacks.linear.cah import CuriousAbandonHonesty
from glasshouse.attacks.linear.fishing import Fishing
from glasshouse.attacks.parts.readout.sparse_columns import ColumnSearch
from glasshouse.metrics.match import assign, mse_table
from glasshouse.process import prepare_process
from glasshouse.rng import Rng
from glasshouse.wire import Batch

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
"""(batch size, rows of the first layer); the second layer has 128 rows."""


def errors(claims: tuple[Claim, ...], private: Batch) -> list[float]:
    """Mean squared error of every private image against its paired claim; 1 without a claim."""
    (claim,) = (c for c in claims if isinstance(c, Reconstruction))
    if not len(claim.inputs):
        return [1.0] * len(private)
    table = mse_table(private.inputs.double(), claim.inputs.double())
    return [float(table[i, j]) if j >= 0 else 1.0 for i, j in enumerate(assign(table))]


def spear_piece(how: str, batch: int, rows: int, seed: int, split: str) -> dict[str, Any]:
    """Attack one batch: number of exact images, and CPU seconds."""
    data = cifar(split)
    order = torch.randperm(len(data), generator=Rng.root(seed, salt="deal").torch())
    private = data.pick(order[:batch])
    budget = {"iterations": LARGE} if how == "descents" else {"iterations": 0, "draws": LARGE}
    attack = Spear(search=ColumnSearch(**budget))
    (claims,), spent = play(attack, private, clients=1, arguments={"hidden": f"{rows},128"}, seed=seed)
    found = sum(e < EXACT for e in errors(claims, private))
    return {"exact": found, "seconds": round(spent, 1)}


class OutOfTimeError(Exception):
    """The CPU time limit of a piece is exceeded."""


def _stop(_signal: int, _frame: FrameType | None) -> None:
    raise OutOfTimeError


def spear_line(task: tuple[str, int, int, int, str, int, Path]) -> str:
    """Run one piece unless its file exists."""
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
        if batch <= arguments.largest and how in arguments.searches
    ]
    tasks.sort(key=lambda task: (task[1] ** 2 * task[2], task[3]))
    with multiprocessing.get_context("spawn").Pool(arguments.workers) as pool:
        for line in pool.imap_unordered(spear_line, tasks):
            print(line, flush=True)


def known_and_judged(arguments: argparse.Namespace) -> tuple[Batch, Batch]:
    """1,000 auxiliary train images, and the evaluation images: test images, or other train images."""
    train = cifar("train")
    order = torch.randperm(len(train), generator=Rng.root(0, salt="auxiliary").torch())
    judged = cifar("test") if arguments.split == "test" else train.pick(order[1000:])
    return train.pick(order[:1000]), judged


def dealt(pool: Batch, size: int, seed: int) -> Batch:
    """``size`` random evaluation images."""
    return pool.pick(torch.randperm(len(pool), generator=Rng.root(seed, salt="deal").torch())[:size])


CAH: Mapping[str, Mapping[str, Any]] = {
    "one client": {},
    "10 clients, secure sum": {"clients": 10, "secure_sum": True},
    "10 clients, secure sum of parameters": {
        "clients": 10,
        "secure_sum": True,
        "protocol": "fedavg",
        "sends": "parameters",
    },
    "four convolutions before the layer": {
        "model": "maui_cnn",
        "arguments": {"width": 4, "poolings": 0, "batch_norm": False, "hidden": 1000},
    },
}
"""Settings of trap weights in 1,000 rows and batches of 100."""


def cah(arguments: argparse.Namespace) -> None:
    """Share of 100 examples recovered by trap weights, exactly and above 18 dB."""
    known, pool = known_and_judged(arguments)
    print("| setting | exact | above 18 dB | CPU s |\n|---|---|---|---|")
    for name, how in CAH.items():
        exact, seen, cost = [], [], []
        for seed in range(arguments.seeds):
            private = dealt(pool, 100, seed)
            options = {"clients": 1, "arguments": {"hidden": "1000,128"}, **how}
            ((claims,), spent) = play(CuriousAbandonHonesty(), private, seed=seed, auxiliary=known, **options)
            error = errors(claims, private)
            exact.append(sum(e < EXACT for e in error) / 100)
            seen.append(sum(e < 10**-1.8 for e in error) / 100)
            cost.append(spent)
        print(f"| {name} | {spread(exact)} | {spread(seen)} | {sum(cost) / len(cost):.1f} |", flush=True)


def fishing(arguments: argparse.Namespace) -> None:
    """Rounds in which one example is isolated from a secure sum of 64 and 256 clients of one example each."""
    known, pool = known_and_judged(arguments)
    rounds = 16
    print(
        "| strategy | clients | share of rounds that isolate | exact examples after 16 rounds (others: 1) |"
    )
    print("|---|---|---|---|")
    for strategy in ("rounds", "feature", "class"):
        for clients in (64, 256):
            share, got = [], []
            for seed in range(arguments.seeds):
                private = dealt(pool, clients, seed)
                claims, _ = play(
                    Fishing(strategy=strategy, target=seed % 10),  # type: ignore[arg-type]
                    private,
                    clients=clients,
                    arguments={},
                    seed=seed,
                    auxiliary=known,
                    rounds=rounds if strategy == "rounds" else 1,
                    secure_sum=True,
                )
                hits = [{i for i, e in enumerate(errors(c, private)) if e < EXACT} for c in claims]
                share.append(sum(map(bool, hits)) / len(hits))
                got.append(float(len(set().union(*hits))))
            print(f"| {strategy} | {clients} | {spread(share)} | {spread(got)} |", flush=True)


def spread(values: list[float]) -> str:
    """Mean and range."""
    return f"{sum(values) / len(values):.3f} ({min(values):g} to {max(values):g})"


def table(arguments: argparse.Namespace) -> None:
    """Number of exact batches and median CPU seconds, by search, rows and batch size."""
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
    """Run the requested part."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("spear", "table", "cah", "fishing"))
    parser.add_argument("--out", type=Path, default=Path("runs/active"))
    parser.add_argument("--split", default="test", choices=("train", "test"))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--limit", type=int, default=600, help="CPU seconds of a piece")
    parser.add_argument("--largest", type=int, default=LARGE, help="batch")
    parser.add_argument("--searches", nargs="+", default=list(SPEAR), choices=list(SPEAR))
    parser.add_argument("--workers", type=int, default=1)
    arguments = parser.parse_args()
    {"spear": spear, "table": table, "cah": cah, "fishing": fishing}[arguments.what](arguments)


if __name__ == "__main__":
    main()
