"""``glasshouse check``."""

from typing import Annotated

import typer

from glasshouse.api.check import check as check_scenario
from glasshouse.cli.options import Json, Name, Sets
from glasshouse.cli.output import say, say_json


def check(
    name: Name,
    *,
    sets: Sets = [],  # noqa: B006 - typer needs a list; never mutated
    probe: Annotated[bool, typer.Option(help="measure a short piece of each attack")] = True,
    device: Annotated[str, typer.Option(help="where attacks are timed: auto, cpu, cuda or mps")] = "cpu",
    as_json: Json = False,
) -> int:
    """Validate SCENARIO, say which attacks will refuse, and what it will cost."""
    checked = check_scenario(name, sets=sets, probe=probe, device=device)
    if as_json:
        plain = [[scenario, vars(refusal)] for scenario, refusal in checked.refusals]
        facts = {"suite": checked.suite.name, "networks": checked.networks, "cost": checked.costs}
        say_json({**facts, "warnings": plain})
    else:
        say(checked)
    return 0
