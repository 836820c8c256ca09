"""``make bench``: what is asked of speed and memory, one process after the other.

``make bench ARGS="ghost soteria"`` runs those alone. The other modules here measure rows of
docs/results and take arguments of their own: ``python -m benchmarks.prolin --help``. Figures that are kept go
to ``results/``.
"""

import subprocess
import sys

RUNS = (
    ("startup",),
    ("ghost",),
    ("soteria",),
    ("scale_mia_speed",),
    ("pli_speed",),
    ("prolin_speed", "tau"),
    ("prolin_speed", "round", "--pairs", "200"),
    ("ggl", "speed"),
)


def main(wanted: list[str]) -> int:
    """Run the ``wanted`` ones (all, if none are named); the number of those that failed."""
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
