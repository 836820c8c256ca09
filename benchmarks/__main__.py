"""``make bench``: every benchmark of this folder in a process of its own, one after the other.

``make bench ARGS="ghost soteria"`` runs those alone. Figures that a benchmark keeps go to ``results/``.
"""

import pkgutil
import subprocess
import sys
from pathlib import Path

MODULES = pkgutil.iter_modules([str(Path(__file__).parent)])
KNOWN = sorted(m.name for m in MODULES if not m.name.startswith("_"))


def main(wanted: list[str]) -> int:
    """Run the ``wanted`` ones (all, if none are named); the number of those that failed."""
    if unknown := sorted(set(wanted) - set(KNOWN)):
        print(f"no benchmark called {', '.join(unknown)}; there are {', '.join(KNOWN)}", file=sys.stderr)
        return 2
    failed = 0
    for name in wanted or KNOWN:
        print(f"== {name}", flush=True)
        failed += subprocess.run([sys.executable, "-m", f"benchmarks.{name}"], check=False).returncode != 0
    return failed


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
