"""Cost of scoring relative to the attacks: ``python -m benchmarks.scoring [--out runs/scoring] [CASE ...]``.

Each case is audited once (existing audits are kept), then its cells are certified and scored again in this
process, in the pieces of an audit, measured in CPU seconds of one thread. The share is the time of both
relative to that of the attacks.
"""

import argparse
import cProfile
import pstats
import time
from pathlib import Path
from typing import Any, Final

from glasshouse.audit.attacking.claims import read_outcome
from glasshouse.audit.plan import Plan, attack_tasks, plan
from glasshouse.audit.run import audit
from glasshouse.audit.scoring.cell import score_cell
from glasshouse.audit.scoring.judging.certificate import certificate_pieces, certify_together
from glasshouse.audit.scoring.tasks import CellTask
from glasshouse.process import prepare_process
from glasshouse.results.strength import Search
from glasshouse.scenario.load import load, load_table
from glasshouse.scenario.suite import Suite

FACES: Final[dict[str, Any]] = {
    "name": "faces-64",
    "data": {"source": "lfw", "auxiliary": 200, "heldout": 200, "examples": 1, "images_are_public": True},
    "model": {"name": "convnet", "width": 8},
    "federation": {"protocol": "fedsgd", "clients": 8, "batch_size": 1},
    "attacks": [{"name": "inverting_gradients", "search": {"iterations": 100, "restarts": 1}}],
    "audit": {"metrics": ["ssim", "psnr", "mse", "identification"], "victims": 8, "controls": False},
}
CASES: Final = ("digits-inversion", "ggl", "faces-64")
ALLOWED: Final = 0.2


def suite_of(case: str) -> Suite:
    """A preset, or the faces of 64 × 64 pixels."""
    return load_table(FACES) if case == "faces-64" else load(case)


def measure(case: str, out: Path) -> tuple[float, float, float]:
    """CPU seconds of attacks, of certificates and of scoring."""
    suite = suite_of(case)
    if not (out / "result.json").exists():
        audit(suite, out=out, jobs=1, resume=(out / "scenario.given.toml").exists())
    plans = plan(suite, out.resolve())
    tasks = [task for one in plans for task in attack_tasks(one, "cpu")]
    attacks = sum(read_outcome(Path(task.out)).seconds for task in tasks)
    started = time.process_time()
    searches = dict(row for piece in certificate_pieces(tasks) for row in certify_together(piece))
    certified = time.process_time()
    for one in plans:
        score_cell(cell_task(one, out, searches))
    return attacks, certified - started, time.process_time() - certified


def cell_task(planned: Plan, out: Path, searches: dict[str, tuple[Search, ...]]) -> CellTask:
    """The task of one cell as in an audit, without controls."""
    own = {t.out: searches[t.out] for t in attack_tasks(planned, "cpu")}
    return CellTask(
        cell=planned.cell, groups=planned.groups, run=str(out.resolve()), controls={}, searches=own
    )


def main() -> None:
    """Print the table, or a profile."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("cases", nargs="*", default=CASES)
    parser.add_argument("--out", type=Path, default=Path("runs/scoring"))
    parser.add_argument("--profile", action="store_true", help="of the last case")
    arguments = parser.parse_args()
    prepare_process()
    print("| case | attacks, s | certificates, s | scores, s | share |\n|---|---|---|---|---|", flush=True)
    for case in arguments.cases:
        profile = cProfile.Profile()
        if arguments.profile:
            profile.enable()
        attacks, certificates, scores = measure(case, arguments.out / case)
        profile.disable()
        share = (certificates + scores) / attacks
        word = "" if share <= ALLOWED else " (too much)"
        print(
            f"| {case} | {attacks:.1f} | {certificates:.1f} | {scores:.1f} | {share:.0%}{word} |", flush=True
        )
        if arguments.profile:
            pstats.Stats(profile).sort_stats("cumulative").print_stats(45)


if __name__ == "__main__":
    main()
