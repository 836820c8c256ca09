"""``glasshouse check``."""

import json
from typing import Annotated

import typer
from rich.console import Console

from glasshouse.audit.cost import cost
from glasshouse.cli.options import Json, Name, Sets
from glasshouse.scenario.axes import cells
from glasshouse.scenario.load import load
from glasshouse.scenario.rules import foreseen


def check(
    name: Name,
    *,
    sets: Sets = [],  # noqa: B006 - what typer wants; never changed
    probe: Annotated[bool, typer.Option(help="measure a short piece of each attack")] = True,
    as_json: Json = False,
) -> int:
    """Validate SCENARIO, say which attacks will refuse, and what it will cost."""
    suite = load(name, sets)
    warnings = [(s.name, r) for s in suite.scenarios for r in foreseen(s)]
    rows = [row for s in suite.scenarios for row in cost(s, probe=probe)]
    if as_json:
        print(
            json.dumps(
                {"suite": suite.name, "cost": rows, "warnings": [[n, vars(r)] for n, r in warnings]},
                default=str,
            )
        )
        return 0
    console = Console()
    console.print(
        f"suite '{suite.name}' is valid: {len(suite.scenarios)} scenarios, "
        f"{sum(len(cells(s)) for s in suite.scenarios)} cells"
    )
    for row in rows:
        time_needed = f", about {row['seconds']:.0f} CPU s" if row["seconds"] is not None else ""
        console.print(
            f"  {row['scenario']}: {row['attack']}: {row['calls']} calls, "
            f"{row['evaluations']:,} evaluations{time_needed}"
        )
    for scenario, refusal in warnings:
        console.print(
            f"  {scenario}: will refuse: {refusal.subject} needs {refusal.needs}; "
            f"got {refusal.got}; {refusal.fix}"
        )
    return 0
