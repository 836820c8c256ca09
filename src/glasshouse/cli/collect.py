"""``glasshouse collect`` and ``glasshouse terms``: commands for a capture."""

from pathlib import Path
from typing import Annotated

import typer

from glasshouse.cli.parts.importing import importing
from glasshouse.cli.parts.options import Json, Sets
from glasshouse.cli.parts.output import say, say_json


def collect(
    capture: Annotated[Path, typer.Argument(help="folder of a capture")],
    folders: Annotated[list[Path], typer.Argument(help="folders that test clients recorded into")],
) -> int:
    """Fetch what test clients recorded, as the truth of CAPTURE."""
    with importing():
        from glasshouse.audit.captured.collect import collect as collect_truth

    truth = collect_truth(capture, folders)
    clients = len(truth.shards)
    say(f"{len(truth.private)} examples of {clients} clients, {len(truth.used)} updates: {capture / 'truth'}")
    return 0


def terms(
    capture: Annotated[Path, typer.Argument(help="folder of a capture")],
    *,
    sets: Sets = [],  # noqa: B006 - typer needs a list; never mutated
    as_json: Json = False,
) -> int:
    """Say where the terms of CAPTURE come from, whether they are right, and which attacks can run."""
    with importing():
        from glasshouse.api.terms import terms as terms_of

    found = terms_of(capture, sets=sets)
    if as_json:
        values = {key: found.value(key) for key in found.origins}
        facts = {"terms": values, "origins": found.origins, "checked": vars(found.checked)}
        say_json({**facts, "runs": found.runs, "refused": found.refused})
    else:
        say(found)
    return 1 if found.checked.suspect else 0
