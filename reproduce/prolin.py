"""PROLIN: run a preset seed by seed, and tabulate the estimators' results.

    python -m reproduce.prolin run prolin-membership --out runs/m --cell 0 --seed 3 4 [--jobs 2] [--set ...]
    python -m reproduce.prolin table runs/m/cell0 --at 50 100 150 200 300

``run`` runs selected seeds of selected cells (data sets) and is resumable: the federation, the evidence
(cached every 20 rounds) and each estimator are stored when they finish. ``table`` pools the seeds: F1 with
its interval at prefixes of rounds, AUC, and the difference of each estimator to gradient disaggregation,
least squares and ridge regression, paired by seed (mean over seeds, t interval).
"""

import argparse
import json
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
from scipy import stats

from glasshouse.attacks.base import Appendix, ClientScores
from glasshouse.audit.attacking.call import run_attack
from glasshouse.audit.attacking.claims import read_outcome
from glasshouse.audit.plan import attack_tasks, plan
from glasshouse.audit.simulation.group import simulate
from glasshouse.errors import Undefined
from glasshouse.metrics import membership
from glasshouse.process import each, prepare_process
from glasshouse.scenario.load import load, read_resolved, write_resolved
from glasshouse.store import read_json
from glasshouse.truth.record import read_truth


def run(arguments: argparse.Namespace) -> None:
    """Run all requested seeds and cells, ``jobs`` at a time."""
    tasks = [
        (arguments.preset, tuple(arguments.set), str(arguments.out.resolve()), cell, seed)
        for seed in arguments.seed
        for cell in arguments.cell
    ]
    for _ in each(run_seed, tasks, processes=arguments.jobs, label="seeds"):
        pass


def run_seed(piece: tuple[str, tuple[str, ...], str, int, int]) -> None:
    """Run one seed of one cell."""
    preset, changes, out, cell, seed = piece
    prepare_process()
    suite = load(preset, [*changes, f"audit.seeds=[{seed}]"])
    planned = plan(suite, Path(out) / f"cell{cell}")[cell]
    for group in planned.groups:
        folder = Path(group.folder)
        folder.mkdir(parents=True, exist_ok=True)
        if not (folder / "scenario.toml").exists():
            write_resolved(planned.cell.scenario, folder / "scenario.toml")
        started = time.process_time()
        simulate(group)
        print(f"{folder.name}: federation {time.process_time() - started:.1f} s", flush=True)
    for task in attack_tasks(replace(planned), "cpu"):
        started = time.process_time()
        run_attack(task)
        print(f"cell {cell}, seed {seed}, {task.attack}: {time.process_time() - started:.1f} s", flush=True)


def folders(out: Path) -> Iterator[Path]:
    """Folders of finished groups."""
    for marker in sorted(out.glob("cells/*/group.json")):
        if any(marker.parent.glob("claims/*/*/claims.json")):
            yield marker.parent


def curves(out: Path) -> dict[str, list[dict[int, tuple[np.ndarray, np.ndarray, np.ndarray]]]]:
    """Estimator → per seed: rounds → (scores, decisions, truth)."""
    tables: dict[str, list[dict[int, tuple[np.ndarray, np.ndarray, np.ndarray]]]] = {}
    for folder in folders(out):
        attacks = read_resolved(folder / "scenario.toml").attacks
        marked = next(iter(read_truth(folder / "truth").marked.values()))
        for path in sorted(folder.glob("claims/*/roundrun")):
            one = {}
            for claim in read_outcome(path).claims:
                if isinstance(claim, ClientScores):
                    truth = np.isin(np.arange(len(claim.scores)), marked)
                    one[len(claim.about.rounds)] = (
                        claim.scores.double().numpy(),
                        claim.decisions.double().numpy(),
                        truth,
                    )
            if one:
                attack = attacks[int(path.parent.name.split("-")[0])]
                tables.setdefault(attack.label or attack.name, []).append(one)
    return tables


def pooled(seeds: list, at: int, metric, reads: int) -> str:
    """The metric over all clients of all seeds that reached ``at`` rounds."""
    parts = [one[at] for one in seeds if at in one]
    if not parts:
        return "-"
    runs = np.repeat(np.arange(len(parts)), [len(p[2]) for p in parts])
    values, truth = np.concatenate([p[reads] for p in parts]), np.concatenate([p[2] for p in parts])
    try:
        result = metric(values, truth, runs=runs)
    except Undefined:
        return "undefined"
    return f"{result.value:.2f} [{result.low:.2f}, {result.high:.2f}]"


def difference(left: list, right: list, at: int) -> str:
    """Mean over seeds of the difference of F1, with its t interval."""
    pairs = [
        membership.f1(a[at][1], a[at][2]).value - membership.f1(b[at][1], b[at][2]).value
        for a, b in zip(left, right, strict=False)
        if at in a and at in b
    ]
    if len(pairs) < 2:
        return "-"
    half = stats.t.ppf(0.975, len(pairs) - 1) * stats.sem(pairs)
    return f"{np.mean(pairs):+.2f} [{np.mean(pairs) - half:+.2f}, {np.mean(pairs) + half:+.2f}]"


def table(arguments: argparse.Namespace) -> None:
    """Print Markdown tables of all results below ``out``."""
    tables = curves(arguments.out)
    print(f"seeds: {max((len(s) for s in tables.values()), default=0)}")
    print("| estimator | " + " | ".join(f"F1, n = {n}" for n in arguments.at) + " | AUC, last |")
    print("|---" * (len(arguments.at) + 2) + "|")
    for name, seeds in tables.items():
        cells = [pooled(seeds, n, membership.f1, 1) for n in arguments.at]
        print(
            f"| {name} | " + " | ".join(cells) + f" | {pooled(seeds, arguments.at[-1], membership.auc, 0)} |"
        )
    for base in ("disaggregation", "ols", "reg"):
        for name in tables:
            if base in tables and name not in ("disaggregation", "ols", base):
                cells = [difference(tables[name], tables[base], n) for n in arguments.at]
                print(f"| {name} - {base} | " + " | ".join(cells) + " | |")
    for folder in folders(arguments.out):
        facts = read_json(folder / "group.json")
        path = next(folder.glob("claims/*/roundrun"))
        reports = [c for c in read_outcome(path).claims if isinstance(c, Appendix) and c.name == "detectors"]
        for report in reports:
            rounds = report.about.rounds
            steps = range(0, len(rounds), max(1, len(rounds) // 6))
            print(
                folder.name,
                "utility",
                json.dumps(facts["utility"]),
                "detector accuracy",
                [round(float(report.tensors["accuracy"][r]), 2) for r in steps],
                "overlap",
                [round(float(report.tensors["overlap"][r]), 2) for r in steps],
            )


def main() -> None:
    """Parse the command line and run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    commands = parser.add_subparsers(required=True)
    one = commands.add_parser("run")
    one.add_argument("preset")
    one.add_argument("--out", type=Path, required=True)
    one.add_argument("--cell", type=int, nargs="+", default=[0])
    one.add_argument("--seed", type=int, nargs="+", required=True)
    one.add_argument("--jobs", type=int, default=1)
    one.add_argument("--set", action="append", default=[])
    one.set_defaults(do=run)
    pool = commands.add_parser("table")
    pool.add_argument("out", type=Path)
    pool.add_argument("--at", type=int, nargs="+", default=[50, 100, 150, 200, 300])
    pool.set_defaults(do=table)
    arguments = parser.parse_args()
    arguments.do(arguments)


if __name__ == "__main__":
    main()
