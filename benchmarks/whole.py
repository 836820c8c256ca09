"""CPU seconds of a whole audit, by itself and from outside: ``python -m benchmarks.whole [SCENARIO]``.

From outside: this process adopts everything that the audit starts, waits until all of it has ended and asks
the system. Linux only. The cache is empty, and the audit has one worker process at a time.
"""

import ctypes
import json
import os
import resource
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

ADOPT = 36
"""``PR_SET_CHILD_SUBREAPER`` of prctl(2)."""
MOST = 0.05
"""Largest share by which the run may be wrong about itself."""


def tree_seconds(command: Sequence[str], environment: dict[str, str]) -> float:
    """User and system time of a command and of everything that it starts, until the last of it has ended."""
    before = _ended()
    subprocess.run(
        command, check=False, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment
    )
    while True:
        try:
            os.waitpid(-1, 0)
        except ChildProcessError:
            return _ended() - before


def _ended() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def main(arguments: Sequence[str]) -> int:
    """Print both numbers and what the run says of its parts; 1: they differ by more than 5 %."""
    scenario = arguments[0] if arguments else "quickstart"
    ctypes.CDLL(None).prctl(ADOPT, 1, 0, 0, 0)
    with tempfile.TemporaryDirectory() as place:
        out = Path(place) / "run"
        command = [sys.executable, "-m", "glasshouse", "audit", scenario, "--jobs", "1", "--no-register"]
        cache = {"GLASSHOUSE_CACHE": str(Path(place) / "cache")}
        outside = tree_seconds([*command, "--out", str(out)], {**os.environ, **cache})
        manifest = json.loads((out / "manifest.json").read_text(encoding="utf-8"))
    said = manifest["cpu_seconds_of_the_whole_run"]
    print(f"{scenario}: {outside:.1f} CPU s from outside, {said:.1f} by itself ({said / outside - 1:+.1%})")
    for name, seconds in manifest["cpu_seconds"].items():
        print(f"  {name:32} {seconds:6.1f}")
    return int(abs(said / outside - 1) > MOST)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
