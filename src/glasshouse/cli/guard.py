"""``glasshouse guard``: inspect received models before training on them, documents before sending them.

Exit codes: 0 nothing found, 1 a finding, 2 bad usage or an unreadable file, 3 not judged: too few examples,
or too little of the model could be looked at.
"""

from pathlib import Path
from typing import Annotated

import typer

from glasshouse.api import AGREED
from glasshouse.cli.parts.importing import importing
from glasshouse.cli.parts.options import Json


def guard(
    models: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="FILE...",
            help="received models (safetensors, torch, npz), or documents to be sent (trees, ...)",
        ),
    ] = None,
    *,
    agreed: Annotated[str, typer.Option(help=f"architecture: {AGREED}, or a transcript's terms.json")] = "",
    reference: Annotated[Path | None, typer.Option(help="an honest model of that architecture")] = None,
    data: Annotated[
        str,
        typer.Option(
            help="your own examples (a folder, npz file or name): the model is tried on them; of documents "
            "your own rows (a table or arrays)"
        ),
    ] = "",
    fewest: Annotated[int, typer.Option(help="of documents: people that a number must be about")] = 5,
    before: Annotated[Path | None, typer.Option(help="of documents: the one that was sent last")] = None,
    page: Annotated[Path | None, typer.Option("--report", help="write a page with a box plot")] = None,
    sarif: Annotated[Path | None, typer.Option(help="write the findings as SARIF 2.1.0")] = None,
    trust_factory: Annotated[
        bool,
        typer.Option("--trust-factory", help="run the code of a module:factory that --agreed's file names"),
    ] = False,
    as_json: Json = False,
) -> int:
    """Inspect each FILE before training on it, or sending it. Exit code 1 on a finding, 3 if not judged."""
    with importing():
        from glasshouse.cli.parts.documents import Sending, guard_documents, is_document
        from glasshouse.cli.parts.received import Asked, answer

    if documents := [path for path in models or () if is_document(path)]:
        how = Sending(data=data, fewest=fewest, before=before)
        return guard_documents(models or (), documents, how, sarif=sarif, as_json=as_json)
    return answer(
        Asked(
            models=tuple(models or ()),
            agreed=agreed,
            reference=reference,
            data=data,
            page=page,
            sarif=sarif,
            trust_factory=trust_factory,
            as_json=as_json,
        )
    )
