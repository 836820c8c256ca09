"""``glasshouse audit``."""

import time
from pathlib import Path
from typing import Annotated

import torch
import typer
from rich.console import Console

from glasshouse.audit.captured.tables import captured_tables
from glasshouse.audit.run import audit as run_audit
from glasshouse.cli.failure import FailureReport
from glasshouse.cli.options import Json, Name, Sets
from glasshouse.cli.progress import bars
from glasshouse.errors import BadValue
from glasshouse.process import default_jobs
from glasshouse.report import write_html
from glasshouse.report.terminal import summary
from glasshouse.results.judgement import primaries
from glasshouse.results.records import Result
from glasshouse.scenario.axes import cells
from glasshouse.scenario.load import load

POLICY_BROKEN, NOT_SHOWN = 1, 3


def audit(
    name: Name,
    *,
    sets: Sets = [],  # noqa: B006 - what typer wants; never changed
    out: Annotated[
        Path | None, typer.Option(help="run directory; default runs/<time>-<suite>-<hash>")
    ] = None,
    resume: Annotated[bool, typer.Option(help="go on with the run in --out")] = False,
    jobs: Annotated[int, typer.Option(help="worker processes; default: cores")] = 0,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or mps")] = "auto",
    show_private: Annotated[bool, typer.Option(help="do not blur private images in the report")] = False,
    captured: Annotated[
        Path | None,
        typer.Option(help="audit the federation captured in this folder, instead of a simulation"),
    ] = None,
    as_json: Json = False,
) -> int:
    """Simulate, attack, score and report what SCENARIO asks for."""
    suite = load(name, sets, captured=captured_tables(captured) if captured else None)
    first = cells(suite.scenarios[0])[0].hash[:8]
    place = out or Path("runs") / f"{time.strftime('%Y%m%d-%H%M%S')}-{suite.name}-{first}"
    console = Console(stderr=as_json)
    with FailureReport(place), bars(console):
        result = run_audit(
            suite, out=place, jobs=jobs or default_jobs(), resume=resume, device=choose_device(device)
        )
        page = write_html(place, show_private=show_private)
    if as_json:
        print((place / "result.json").read_text(encoding="utf-8"))
    else:
        console.print(summary(result))
        console.print(shares(result), soft_wrap=True)
        console.print(f"report: {page}", soft_wrap=True)
    return exit_code(result)


def shares(result: Result) -> str:
    """Where the CPU time went, per part of the product that the suite shows.

    Examples:
        >>> shares(Result(suite="s", manifest={"seconds": {"a": 3.0, "b": 1.0, "wall clock": 2.5}}))
        'CPU time: a 3 s (75 %), b 1 s (25 %); 2 s on the clock'
    """
    spent = dict(result.manifest["seconds"])
    clock = spent.pop("wall clock")
    total = sum(spent.values()) or 1.0
    parts = (f"{name} {seconds:.0f} s ({seconds / total:.0%})" for name, seconds in spent.items())
    return f"CPU time: {', '.join(parts)}; {clock:.0f} s on the clock".replace("%)", " %)")


def exit_code(result: Result) -> int:
    """0 done, and every limit was shown to hold; 1 a limit is broken; 3 not shown.

    Not shown: a limit is undecided or unmeasured, no attack of a scenario had power, or nothing was measured.
    """
    states = {limit.state for limit in result.limits}
    if "broken" in states:
        return POLICY_BROKEN
    deciding = primaries(result.findings)
    powerless = {f.scenario for f in deciding} - {f.scenario for f in deciding if f.verdict != "no power"}
    return NOT_SHOWN if states - {"holds"} or powerless or not result.findings else 0


def choose_device(device: str) -> str:
    """``auto`` resolved; a device that is not there is an error.

    Raises:
        BadValue: unknown, or not available on this machine.
    """
    there = {"cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    if device == "auto":
        return "cuda" if there["cuda"] else "cpu"
    if not there.get(device, False):
        raise BadValue(
            f"device '{device}'",
            needs="auto, or one of " + ", ".join(d for d, here in there.items() if here) + " on this machine",
            got=device,
            fix="install a build of torch for it (README), or leave --device out",
        )
    return device
