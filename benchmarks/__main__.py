"""``make bench``: the speed and memory benchmarks, one process after the other.

``make bench ARGS="startup scale"`` runs only those.
"""

import subprocess
import sys

RUNS = (
    ("startup",),
    ("speed", "iteration"),
    ("speed", "victims"),
    ("scale",),
    ("large",),
    ("split",),
    ("pooled",),
    ("scoring", "quickstart"),
    ("gate",),
)


def main(wanted: list[str]) -> int:
    """Run the ``wanted`` benchmarks (all, if empty); return the number of failures."""
    known = {run[0] for run in RUNS}
    if unknown := sorted(set(wanted) - known):
        print(
            f"no benchmark called {', '.join(unknown)}; there are {', '.join(sorted(known))}", file=sys.stderr
        )
        return 2
    failed = 0
    for name, *arguments in RUNS:
        if not wanted or name in wanted:
            print(f"== {name} {' '.join(arguments)}", flush=True)
            command = [sys.executable, "-m", f"benchmarks.{name}", *arguments]
            failed += subprocess.run(command, check=False).returncode != 0
    return failed


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
