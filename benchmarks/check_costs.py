"""What ``check`` says against the truth: ``python -m benchmarks.check_costs [PRESET ...] [--out FOLDER]``.

Each preset is probed, then audited with an empty cache in one process at a time; a run that is there is kept.
Seconds are of one processor; the truth is the sum over all pieces, without the start of processes.
"""

import argparse
import json
import os
import shutil
import time
from pathlib import Path
from typing import Final

from glasshouse.audit.cost import costs
from glasshouse.audit.probe import Stopwatch
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


def row(preset: str, out: Path) -> dict[str, float | str]:
    """Foretold and true seconds of one preset, and what the probe took."""
    kept = out / f"{preset}.json"
    if kept.exists():
        return dict(json.loads(kept.read_text(encoding="utf-8")))
    out.mkdir(parents=True, exist_ok=True)
    suite = load(preset)
    started = time.process_time()
    told = costs(suite, timer=Stopwatch())[-1]
    probe = time.process_time() - started
    os.environ["GLASSHOUSE_CACHE"] = str((out / f"{preset}-cache").resolve())
    for place in (out / preset, out / f"{preset}-cache"):
        shutil.rmtree(place, ignore_errors=True)
    spent = audit(suite, out=out / preset, jobs=1).manifest["cpu_seconds"]
    facts = {
        "preset": preset,
        "told": told["seconds"],
        "true": sum(spent.values()),
        "probe": probe,
        "unmeasured": ", ".join(told["unmeasured"]),
        "parts": ", ".join(f"{label} {seconds:.1f}" for label, seconds in spent.items()),
    }
    kept.write_text(json.dumps(facts) + "\n", encoding="utf-8")
    return facts


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
        one = row(preset, arguments.out)
        ratio = float(one["told"]) / float(one["true"])
        word = "" if 1 / WITHIN <= ratio <= WITHIN else " (off)"
        late = "" if float(one["probe"]) <= PROBE else " (too long)"
        seconds = f"{one['told']:.0f} | {one['true']:.0f} | {ratio:.2f}{word} | {one['probe']:.1f}{late}"
        print(f"| {preset} | {seconds} | {one['unmeasured'] or 'nothing'} |", flush=True)


if __name__ == "__main__":
    main()
