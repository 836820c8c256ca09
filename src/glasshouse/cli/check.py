"""``glasshouse check``."""

from dataclasses import asdict

from glasshouse.cli.parts.importing import importing
from glasshouse.cli.parts.options import Captured, Json, Name, Sets
from glasshouse.cli.parts.output import say, say_json


def check(
    name: Name,
    *,
    sets: Sets = [],  # noqa: B006 - typer needs a list; never mutated
    captured: Captured = None,
    as_json: Json = False,
) -> int:
    """Validate SCENARIO, say which attacks will refuse, and count the work."""
    with importing():
        from glasshouse.api.check import check as check_scenario

    checked = check_scenario(name, sets=sets, captured=captured)
    if as_json:
        plain = [[scenario, vars(refusal)] for scenario, refusal in checked.refusals]
        facts = {
            "suite": checked.suite.name,
            "networks": checked.networks,
            "work": [asdict(row) for row in checked.work],
        }
        say_json({**facts, "warnings": plain, "remarks": list(checked.remarks)})
    else:
        say(checked)
    return 0
