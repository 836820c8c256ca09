"""Start-up time of commands in CPU seconds: ``python -m benchmarks.startup``.

Each command runs several times in a process of its own. The median of user and system time is printed next to
the required limit. The first run does not count: it fills the file cache of the operating system.
"""

import os
import statistics
import subprocess
import sys

from glasshouse.cli.main import COMMANDS

REPEATS = 5
LIMITS = {
    ("--help",): 0.5,
    ("--version",): 0.5,
    ("list", "attacks"): 0.5,
    ("list", "scenarios"): 0.5,
    **{(name, "--help"): 0.5 for name in COMMANDS},
    ("check", "dlg"): 2.0,
}


def cpu_seconds(arguments: tuple[str, ...]) -> float:
    """User and system time of one ``glasshouse`` command with these arguments."""
    command = [sys.executable, "-c", "from glasshouse.cli import main; main()", *arguments]
    before = os.times()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    after = os.times()
    return after.children_user + after.children_system - before.children_user - before.children_system


def main() -> int:
    """Print one line per command; return the number of commands above the limit."""
    slow = 0
    for arguments, limit in LIMITS.items():
        cpu_seconds(arguments)
        median = statistics.median(cpu_seconds(arguments) for _ in range(REPEATS))
        slow += median > limit
        print(f"glasshouse {' '.join(arguments):35} {median:5.2f} CPU s  (at most {limit})")
    return slow


if __name__ == "__main__":
    sys.exit(main())
