"""Ray against the local pool: ``python -m benchmarks.executors [--iterations 1500] [--out FOLDER]``.

One audit of six federations with one attack piece each, on a Ray cluster of this machine with one and with
two pieces at a time, and on local processes. Reports wall-clock seconds up to the last score: run it on an
idle machine. The results must be equal except for timings.
"""

import argparse
import json
import shutil
import time
from pathlib import Path
from typing import Any, Final

from glasshouse.audit.run import audit
from glasshouse.process import prepare_process
from glasshouse.scenario.load import load_table

SCENARIO: Final[dict[str, Any]] = {
    "name": "executors",
    "data": {"auxiliary": 60, "heldout": 60, "examples": 1},
    "model": {"name": "lenet_sigmoid"},
    "federation": {"clients": 1, "batch_size": 1},
    "audit": {"metrics": ["psnr"], "controls": False, "utility": False, "seeds": [0, 1, 2, 3, 4, 5]},
}
RUNS: Final = (("ray", 1), ("ray", 2), ("local", 1), ("local", 2))
WANTED: Final = 1.7


def timeless(value: Any) -> Any:
    """``value`` without timings and manifest."""
    if isinstance(value, dict):
        return {k: timeless(v) for k, v in value.items() if k not in ("seconds", "manifest")}
    return [timeless(v) for v in value] if isinstance(value, list) else value


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--iterations", type=int, default=1500, help="such that a piece takes 5 s or more")
    parser.add_argument("--out", type=Path, default=Path("runs/executors"))
    arguments = parser.parse_args()
    prepare_process()
    attack = {"name": "inverting_gradients", "search": {"iterations": arguments.iterations, "restarts": 4}}
    suite = load_table({**SCENARIO, "attacks": [attack]})
    clocks: dict[tuple[str, int], float] = {}
    results = []
    print("| executor | pieces at a time | s on the clock | CPU s of a piece | against one at a time |")
    print("|---|---|---|---|---|", flush=True)
    for executor, jobs in RUNS:
        out = arguments.out / f"{executor}-{jobs}"
        shutil.rmtree(out, ignore_errors=True)
        address = "local" if executor == "ray" else ""
        started = time.perf_counter()
        result = audit(suite, out=out, jobs=jobs, executor=executor, address=address)
        whole = time.perf_counter() - started
        events = [json.loads(line) for line in (out / "log.jsonl").read_text(encoding="utf-8").splitlines()]
        clock = next(e["after"] for e in events if e["event"] == "scores")
        clocks[executor, jobs] = clock
        results.append(timeless(json.loads((out / "result.json").read_text(encoding="utf-8"))))
        piece = result.manifest["cpu_seconds"]["attacks"] / 6
        ratio = clocks[executor, 1] / clock
        word = "" if jobs == 1 or ratio >= WANTED else f" (below {WANTED})"
        spent = f"{clock:.1f} of {whole:.1f} | {piece:.1f}"
        print(f"| {executor} | {jobs} | {spent} | {ratio:.2f}{word} |", flush=True)
    print(f"\nresults equal but for seconds: {all(r == results[0] for r in results)}")


if __name__ == "__main__":
    main()
