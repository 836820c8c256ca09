"""``glasshouse collect``."""

from pathlib import Path
from typing import Annotated

import typer

from glasshouse.cli.parts.importing import importing
from glasshouse.cli.parts.output import say


def collect(
    capture: Annotated[Path, typer.Argument(help="folder of a capture")],
    folders: Annotated[list[Path], typer.Argument(help="folders that test clients recorded into")],
) -> int:
    """Fetch what test clients recorded, as the truth of CAPTURE."""
    with importing():
        from glasshouse.audit.captured.collect import collect as collect_truth

    truth = collect_truth(capture, folders)
    clients = len(truth.shards)
    say(f"{len(truth.private)} images of {clients} clients, {len(truth.used)} updates: {capture / 'truth'}")
    return 0
