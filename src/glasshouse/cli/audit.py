"""``glasshouse audit``."""

import json
from typing import TYPE_CHECKING, Annotated

import typer

from glasshouse.cli.parts.failure import failure_report
from glasshouse.cli.parts.importing import importing
from glasshouse.cli.parts.options import Captured, Full, Json, Name, Sets
from glasshouse.cli.parts.output import say_json
from glasshouse.cli.parts.progress import bars

if TYPE_CHECKING:
    from glasshouse.results.records import Result


def audit(
    name: Name,
    *,
    sets: Sets = [],  # noqa: B006 - typer needs a list; never mutated
    out: Annotated[str | None, typer.Option(help="run directory; default runs/<time>-<suite>-<hash>")] = None,
    resume: Annotated[bool, typer.Option(help="go on with the run in --out")] = False,
    jobs: Annotated[int, typer.Option(help="worker processes; default: cores")] = 0,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or mps")] = "auto",
    show_private: Annotated[bool, typer.Option(help="do not blur private images in the report")] = False,
    captured: Captured = None,
    executor: Annotated[str, typer.Option(help="where the pieces run: local or ray")] = "local",
    address: Annotated[str, typer.Option(help="of the executor's cluster")] = "",
    register: Annotated[
        str | None,
        typer.Option(help="file that lists every audit begun; default runs/register.jsonl"),
    ] = None,
    no_register: Annotated[
        bool, typer.Option("--no-register", help="list this audit nowhere; the report says so")
    ] = False,
    full: Full = False,
    as_json: Json = False,
) -> int:
    """Simulate, attack, score and report what SCENARIO asks for."""
    with importing():
        from glasshouse.api.audit import audit as run_audit
        from glasshouse.api.audit import run_folder
        from glasshouse.api.check import check
        from glasshouse.outside.screen import Screen
        from glasshouse.process import charge_from_start
        from glasshouse.report.terminal import brief, summary
        from glasshouse.results.outcome import exit_code

    place = run_folder(name, sets, out, captured=captured)
    console = Screen(stderr=as_json)
    # Who audits a capture for the first time has seen no such audit: its time is said beforehand.
    if captured is not None and (expected := check(name, sets=sets, captured=captured).duration):
        console.print(f"this takes {expected}; glasshouse check says of what", soft_wrap=True)
    charge_from_start()
    with failure_report(place), bars(console):
        run = run_audit(
            name,
            sets=sets,
            out=place,
            jobs=jobs,
            resume=resume,
            device=device,
            show_private=show_private,
            captured=captured,
            executor=executor,
            address=address,
            register=False if no_register else register or True,
        )
    if as_json:
        say_json(json.loads((place / "result.json").read_text(encoding="utf-8")), indent=1)
    else:
        console.print(summary(run.result) if full else brief(run.result))
        console.print(shares(run.result), soft_wrap=True)
        console.print(f"report: {place / 'report.html'}", soft_wrap=True)
    return exit_code(run.result)


def shares(result: "Result") -> str:
    """CPU time per part of the product that the suite demonstrates.

    Examples:
        >>> from glasshouse.results.records import Result
        >>> shares(Result(suite="s", manifest={"seconds": {"a": 3.0, "b": 1.0, "wall clock": 2.5}}))
        'CPU time: 4 s: a 3 s (75 %), b 1 s (25 %); 2 s on the clock'
    """
    spent = dict(result.manifest["seconds"])
    clock = spent.pop("wall clock")
    total = sum(spent.values()) or 1.0
    parts = (f"{name} {seconds:.0f} s ({seconds / total:.0%})" for name, seconds in spent.items())
    return f"CPU time: {total:.0f} s: {', '.join(parts)}; {clock:.0f} s on the clock".replace("%)", " %)")
