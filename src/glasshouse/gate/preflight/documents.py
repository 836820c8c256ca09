"""Documents are judged by the document guard, and compared with the site's own rows, before they leave.

A document is one flat tensor of bytes. Documents of numbers (statistics, survival, Newton sums, histograms)
are written anew from what was read, so that nothing else is in them; trees leave as they came.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, final

import numpy as np
from numpy.typing import NDArray

from glasshouse.errors import BadFile, GlasshouseError
from glasshouse.formats.base import read_document
from glasshouse.formats.records import TreeEnsemble
from glasshouse.formats.tabular import document_of
from glasshouse.gate.message import Arrays, Reason
from glasshouse.gate.policy import DocumentRule
from glasshouse.guard.rules.documents import inspect_document

MOST: Final = 2**30
"""Bytes of the site's own rows."""


@final
class DocumentGuard:
    """Judges documents, and remembers the last one of each name, so that counts that moved are seen.

    What was sent last is forgotten when the gate starts anew.

    Args:
        rule: of the policy.
        folder: that its paths are relative to.

    Raises:
        BadFile: the site's rows cannot be read.
    """

    def __init__(self, rule: DocumentRule, folder: Path) -> None:
        self._rule = rule
        self._rows = None if not rule.rows else _own_rows(folder / rule.rows)
        self._last: dict[tuple[str, str], bytes] = {}

    def split(self, arrays: Arrays) -> tuple[dict[str, NDArray[Any]], dict[str, NDArray[Any]]]:
        """The documents, and all other tensors."""
        documents = {n: a for n, a in arrays.items() if a.dtype == np.uint8 and a.ndim == 1}
        return documents, {n: a for n, a in arrays.items() if n not in documents}

    def judge(self, run: str, documents: Arrays) -> tuple[dict[str, NDArray[Any]], list[Reason]]:
        """What may leave of these documents, and reasons to refuse; a document that cannot be read is one."""
        kept: dict[str, NDArray[Any]] = {}
        refusals = []
        for name, array in documents.items():
            sent = array.tobytes().rstrip(b"\0")
            try:
                media, record = read_document(sent)
                rows = self._rows if isinstance(record, TreeEnsemble) else None
                found = inspect_document(
                    sent, rows, fewest=self._rule.fewest, before=self._last.get((run, name))
                )
            except GlasshouseError as error:
                refusals.append(Reason(rule="document_unread", detail=error.subject[:60]))
                continue
            # A format is judged after it was read, so that its name cannot be forged.
            if self._rule.formats and media not in self._rule.formats:
                refusals.append(Reason(rule="document_format", detail=media))
                continue
            refusals += [Reason(rule="document", detail=text) for text in found.findings]
            # What is no tree is written anew from what was read: nothing else of its bytes leaves.
            whole = sent if isinstance(record, TreeEnsemble) else document_of(record)
            kept[name] = np.frombuffer(whole, dtype=np.uint8).copy()
        return kept, refusals

    def remember(self, run: str, documents: Mapping[str, NDArray[Any]]) -> None:
        """Keep what was sent, to compare the next one with it."""
        self._last |= {(run, name): array.tobytes() for name, array in documents.items()}


def _own_rows(path: Path) -> NDArray[np.float64]:
    subject = f"rows '{path}'"
    try:
        if path.stat().st_size > MOST:
            raise ValueError(f"more than {MOST:,} bytes")
        rows = np.load(path, allow_pickle=False)
    except (OSError, ValueError) as error:
        raise BadFile(subject, needs="an npy file of numbers", got=str(error), fix="numpy.save it") from error
    if not isinstance(rows, np.ndarray) or rows.ndim != 2 or rows.dtype.kind not in "fiu":
        raise BadFile(subject, needs="numbers (N, F)", got="another array", fix="save the rows of training")
    return rows.astype(np.float64)
