"""Run hostile cases on the command line, many in one process: ``python -m tests.hostile.hostile_driver``.

Arguments: the folder to work in, the honest run, and where to write what happened. Each case has ten
seconds, and the process may not take more than 2 GiB of addresses on top of what it has.
"""

import contextlib
import io
import json
import logging
import os
import resource
import signal
import sys
import tempfile
import time
import traceback
from pathlib import Path
from typing import Any

from tests.hostile.hostile_files import FILES, SHOWN
from tests.hostile.hostile_runs import RUNS, Case

from glasshouse.cli import main

SECONDS = 10
MOST = 2 * 2**30
CASES: dict[str, Case] = {**RUNS, **FILES, **SHOWN}


class TooLong(BaseException):
    """Ten seconds are over."""


def allowed(case: Path) -> tuple[str, ...]:
    """Beginnings of the paths that the program itself may open."""
    places = [case, sys.prefix, sys.base_prefix, os.environ["GLASSHOUSE_CACHE"], *filter(None, sys.path)]
    ours = {str(p) for p in places} | {str(Path(p).resolve()) for p in places}
    system = ("/proc/", "/sys/", "/usr/", "/lib", "/dev/null", "/dev/urandom", "/dev/shm/")
    return (*sorted(ours - {"/"}), *system, str(Path(tempfile.gettempdir()) / "tmp"))


def main_of(case: Path, honest: Path, build: Case, opened: list[str]) -> dict[str, Any]:
    """What one case did."""
    case.mkdir(parents=True)
    arguments = build(case, honest)
    os.chdir(case)
    before, started = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.perf_counter()
    out, err, code, crash = io.StringIO(), io.StringIO(), None, ""
    opened.clear()
    signal.setitimer(signal.ITIMER_REAL, SECONDS)
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            main(arguments)
    except SystemExit as stop:
        code = stop.code
    except TooLong:
        crash = "too long"
    except Exception:  # noqa: BLE001 - whatever a hostile file causes is what is looked for
        crash = traceback.format_exc()
    signal.setitimer(signal.ITIMER_REAL, 0)
    fences = allowed(case)
    return {
        "arguments": arguments,
        "code": code,
        "said": out.getvalue() + err.getvalue(),
        "crash": crash,
        "seconds": time.perf_counter() - started,
        "grown": (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024,
        "evil": (case / "EVIL").exists() or "evilmod" in sys.modules,
        "outside": sorted({path for path in opened if not path.startswith(fences)}),
    }


def watch(opened: list[str]) -> None:
    """Record the real path of every file that Python opens."""

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open" and isinstance(arguments[0], (str, bytes)):
            opened.append(os.path.realpath(os.fsdecode(arguments[0])))

    sys.addaudithook(hook)


def run(place: Path, honest: Path, out: Path) -> None:
    """All cases, one after the other."""

    def stop(*_: object) -> None:
        raise TooLong

    signal.signal(signal.SIGALRM, stop)
    opened: list[str] = []
    watch(opened)
    with contextlib.suppress(SystemExit), contextlib.redirect_stdout(io.StringIO()):
        main(["replay", str(place), "--attack", "linear_input"])  # what is imported late is there now
    logging.disable(logging.CRITICAL)
    addresses = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (addresses + MOST, resource.RLIM_INFINITY))
    with contextlib.suppress(SystemExit), contextlib.redirect_stdout(io.StringIO()):
        # The process that workers come from starts once, under the limit; its imports are no case's time.
        main(["audit", str(honest.parent / "mine.toml"), "--out", str(place / "first"), "--jobs", "1"])
    happened = {
        name: main_of(place / f"{number:03d}", honest, build, opened)
        for number, (name, build) in enumerate(CASES.items())
    }
    out.write_text(json.dumps(happened))


if __name__ == "__main__":
    run(*(Path(argument).resolve() for argument in sys.argv[1:4]))
