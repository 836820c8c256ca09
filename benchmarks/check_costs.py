"""Predicted and actual cost of ``check``: ``python -m benchmarks.check_costs [PRESET ...] [--out FOLDER]``.

Each preset is probed in a new process, then audited with an empty cache in one process at a time; existing
results are kept. Seconds are of one core; the actual cost is the sum over all pieces, without process start.
"""

import argparse
import json
import os
import shutil
import time
from multiprocessing import get_context
from pathlib import Path
from typing import Final

from glasshouse.audit.cost.estimate import costs
from glasshouse.audit.cost.probe import Stopwatch
from glasshouse.audit.run import audit
from glasshouse.process import prepare_process
from glasshouse.scenario.load import load

PRESETS: Final = (
    "digits-inversion",
    "quickstart-ggl",
    "quickstart-photos",
    "quickstart-transfer",
    "quickstart-rounds",
)
WITHIN: Final = 1.5
PROBE: Final = 10.0


def told(preset: str, out: Path) -> dict[str, float | str]:
    """The cost predicted by ``check`` for one preset, and the time it took."""
    kept = out / f"{preset}-told.json"
    if not kept.exists():
        out.mkdir(parents=True, exist_ok=True)
        prepare_process()
        suite, started = load(preset), time.process_time()
        total = costs(suite, timer=Stopwatch())[-1]
        probe, unmeasured = time.process_time() - started, ", ".join(total["unmeasured"])
        facts = {"told": total["seconds"], "probe": probe, "unmeasured": unmeasured}
        kept.write_text(json.dumps(facts) + "\n", encoding="utf-8")
    return dict(json.loads(kept.read_text(encoding="utf-8")))


def truth(preset: str, out: Path) -> float:
    """Actual CPU seconds of all pieces of the audit."""
    kept = out / f"{preset}-true.json"
    if not kept.exists():
        os.environ["GLASSHOUSE_CACHE"] = str((out / f"{preset}-cache").resolve())
        for place in (out / preset, out / f"{preset}-cache"):
            shutil.rmtree(place, ignore_errors=True)
        spent = audit(load(preset), out=out / preset, jobs=1).manifest["cpu_seconds"]
        kept.write_text(json.dumps(spent) + "\n", encoding="utf-8")
    return float(sum(json.loads(kept.read_text(encoding="utf-8")).values()))


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("presets", nargs="*", default=PRESETS)
    parser.add_argument("--out", type=Path, default=Path("runs/check-costs"))
    arguments = parser.parse_args()
    prepare_process()
    print("| preset | check says, s | truth, s | ratio | the probe took, s | not measured |", flush=True)
    print("|---|---|---|---|---|---|")
    for preset in arguments.presets:
        with get_context("spawn").Pool(1) as pool:
            one = pool.apply(told, (preset, arguments.out))
        one |= {"true": truth(preset, arguments.out)}
        ratio = float(one["told"]) / float(one["true"])
        word = "" if 1 / WITHIN <= ratio <= WITHIN else " (off)"
        late = "" if float(one["probe"]) <= PROBE else " (too long)"
        seconds = f"{one['told']:.1f} | {one['true']:.1f} | {ratio:.2f}{word} | {one['probe']:.1f}{late}"
        print(f"| {preset} | {seconds} | {one['unmeasured'] or 'nothing'} |", flush=True)


if __name__ == "__main__":
    main()
