"""``glasshouse check``."""

import json
from typing import Annotated, Any

import typer
from rich.console import Console

from glasshouse.audit.cost import Row, Timer, costs
from glasshouse.audit.preflight.inspect import Warnings, check_suite, foreseen_refusals, problems
from glasshouse.cli.options import Json, Name, Sets
from glasshouse.scenario.axes import cells
from glasshouse.scenario.load import load
from glasshouse.scenario.suite import Suite


def check(
    name: Name,
    *,
    sets: Sets = [],  # noqa: B006 - what typer wants; never changed
    probe: Annotated[bool, typer.Option(help="measure a short piece of each attack")] = True,
    as_json: Json = False,
) -> int:
    """Validate SCENARIO, say which attacks will refuse, and what it will cost."""
    suite = load(name, sets, inspect=problems)
    check_suite(suite)
    warnings = foreseen_refusals(suite)
    rows = costs(suite, timer=_stopwatch() if probe else None)
    if as_json:
        plain = [[n, vars(r)] for n, r in warnings]
        print(json.dumps({"suite": suite.name, "cost": rows, "warnings": plain}, default=str))
    else:
        _print(suite, rows, warnings, Console())
    return 0


def _stopwatch() -> Timer:
    # Imported here: only a probe simulates, and a check without one should not wait for what that needs.
    from glasshouse.audit.probe import Stopwatch  # noqa: PLC0415

    return Stopwatch()


def _print(suite: Suite, rows: list[Row], warnings: Warnings, console: Console) -> None:
    count = sum(len(cells(s)) for s in suite.scenarios)
    console.print(f"suite '{suite.name}' is valid: {len(suite.scenarios)} scenarios, {count} cells")
    for row in rows:
        console.print(f"  {row['scenario']}: {row['part']}: {row_words(row)}", soft_wrap=True)
    for scenario, refusal in warnings:
        console.print(
            f"  {scenario}: will refuse: {refusal.subject} needs {refusal.needs}; "
            f"got {refusal.got}; {refusal.fix}"
        )


def row_words(row: dict[str, Any]) -> str:
    """Counts and seconds of one row of the costs.

    Examples:
        >>> row_words({"calls": 2, "unit": "iterations", "evaluations": 1200, "seconds": 3.2})
        '2 calls, 1,200 iterations, about 3 CPU s'
    """
    words = [f"{row['calls']:,} calls"]
    if row["evaluations"] is not None:
        words.append(f"{row['evaluations']:,} {row['unit']}")
    if row["seconds"] is not None:
        words.append(f"about {row['seconds']:.0f} CPU s")
    if row.get("unmeasured"):
        words.append(f"and what was not measured: {', '.join(row['unmeasured'])}")
    return ", ".join(words)
