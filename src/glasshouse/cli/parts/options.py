"""Arguments and options shared by several commands."""

from pathlib import Path
from typing import Annotated

import typer

Name = Annotated[str, typer.Argument(help="a preset (glasshouse list scenarios) or a TOML file")]
Sets = Annotated[list[str], typer.Option("--set", help="path=value, as often as needed")]
Captured = Annotated[
    str | None, typer.Option(help="a captured federation: its folder; audited instead of a simulation")
]
Full = Annotated[bool, typer.Option("--full", help="print every scenario, not one screen for all")]
Json = Annotated[bool, typer.Option("--json", help="print JSON")]
ShowPrivate = Annotated[bool, typer.Option(help="do not blur private images")]
TrustFactory = Annotated[
    bool, typer.Option("--trust-factory", help="run the code of a module:factory that RUN names")
]
Run = Annotated[Path, typer.Argument(help="a run directory")]
