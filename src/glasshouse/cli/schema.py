"""``glasshouse schema``."""

from pathlib import Path
from typing import Annotated

import typer

from glasshouse.cli.parts.importing import importing
from glasshouse.cli.parts.output import say


def schema(
    table: Annotated[Path, typer.Argument(help="a .csv or .parquet file")],
    target: Annotated[str, typer.Option(help="the column that is predicted; the last one otherwise")] = "",
) -> int:
    """Draft the schema of TABLE: print it, to be read, corrected and confirmed by the owner of the data."""
    with importing():
        from glasshouse.data.paths import require_existing
        from glasshouse.data.tables.schema import draft
        from glasshouse.data.tables.table import dates_in, drafted, read_frame

    path = require_existing(str(table), name=str(table))
    frame = read_frame(path, name=str(table))
    columns = drafted(frame)
    say(draft(columns, target=target or list(columns)[-1].name, dates=dates_in(frame)))
    return 0
