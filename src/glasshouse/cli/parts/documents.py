"""``glasshouse guard FILE`` for documents: may this leave the site?"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, final

import numpy as np
from numpy.typing import NDArray

from glasshouse.cli.parts.output import say, say_json
from glasshouse.data.sources import load as load_data
from glasshouse.disk import write_text
from glasshouse.errors import BadFile, BadValue
from glasshouse.formats.base import BYTES, HEAD, looks_like_document
from glasshouse.guard.rules.documents import FEWEST, inspect_document
from glasshouse.outside import text
from glasshouse.outside.files import printable, read_limited
from glasshouse.report.sarif import sarif as sarif_log
from glasshouse.wire import Inspection

__all__ = ["Sending", "guard_documents", "is_document"]

NO_PROOF: Final = (
    "No rule found anything. That is no proof of privacy: what attacks get is measured by glasshouse audit."
)
UNASKED: Final = " Cells and values were not compared with your rows: give them by --data."


@final
@dataclass(frozen=True, kw_only=True)
class Sending:
    """How a document is judged.

    Attributes:
        data: the site's own rows, as a data source; empty: none.
        fewest: smallest number of people that a number may be about.
        before: the document that was sent last; None: none.
    """

    data: str = ""
    fewest: int = FEWEST
    before: Path | None = None

    def rows(self) -> NDArray[np.float64] | None:
        """The site's own rows as the trees see them, (N, F).

        Raises:
            BadFile, UnknownName: they cannot be read.
            BadValue: they are no rows of numbers.
        """
        if not self.data:
            return None
        source = load_data(self.data)
        if len(source.inputs.shape) != 1 or not source.inputs.dtype.is_floating_point:
            raise BadValue(
                f"data '{self.data}' for the guard",
                needs="rows of numbers (a table, or arrays of one dimension)",
                got=f"{source.inputs.nouns} of shape {source.inputs.shape}",
                fix="name the table of training: table:FILE.schema.toml, or arrays:FILE.npz",
            )
        rows = next(iter(source.splits.values())).batch().inputs
        return np.asarray(rows.double().numpy())


def is_document(path: Path) -> bool:
    """Whether a file begins like a document; one that cannot be read is left to whoever reads it."""
    if not path.is_file():  # a pipe or a device may never end
        return False
    try:
        with path.open("rb") as file:
            return looks_like_document(file.read(HEAD))
    except OSError:
        return False


def guard_documents(
    paths: Sequence[Path],
    documents: Sequence[Path],
    how: Sending,
    *,
    sarif: Path | None = None,
    as_json: bool = False,
) -> int:
    """Judge every document; 1 if one must not be sent, else 0.

    Raises:
        BadValue: models among the files, which are judged apart.
        BadFile: a document that cannot be read.
    """
    if len(documents) < len(paths):
        other = next(path for path in paths if path not in documents)
        raise BadValue(
            "glasshouse guard",
            needs="documents alone, or models alone",
            got=f"'{documents[0]}' and '{other}'",
            fix="call it once for each kind",
        )
    # The site's own rows, and what it sent last, say what a document would add.
    rows = how.rows()
    last = None if how.before is None else _read(how.before)
    judged = {str(path): _judge(path, rows, how, last) for path in documents}
    if sarif is not None:
        log = sarif_log({Path(name): one.findings for name, one in judged.items()})
        write_text(sarif, text.as_json(log, indent=1))
    if as_json:
        say_json(
            {
                name: {
                    "verdict": "refused" if one.findings else "passed",
                    "findings": one.findings,
                    **one.values,
                }
                for name, one in judged.items()
            }
        )
    else:
        for name, one in judged.items():
            say(f"{printable(name)}: {'do not send it' if one.findings else 'passed'}")
            for finding in one.findings:
                say(f"  {finding}")
        if not any(one.findings for one in judged.values()):
            say(NO_PROOF + (UNASKED if rows is None else ""))
    return int(any(one.findings for one in judged.values()))


def _read(path: Path) -> bytes:
    return read_limited(path, BYTES, subject=f"document '{path}'")


def _judge(path: Path, rows: NDArray[np.float64] | None, how: Sending, last: bytes | None) -> Inspection:
    try:
        return inspect_document(_read(path), rows, fewest=how.fewest, before=last)
    except BadFile as error:
        subject = f"file '{path}', {error.subject}"
        raise BadFile(subject, needs=error.needs, got=error.got, fix=error.fix) from error
