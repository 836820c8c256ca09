"""``text:PATH``: sentences in plain text files, one per line, or in a column of .tsv or .csv files."""

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import numpy as np

from glasshouse.data.paths import SPLITS, require_existing, require_inside
from glasshouse.data.texts import Texts
from glasshouse.errors import BadFile
from glasshouse.outside import limits
from glasshouse.outside.files import read_limited, shorten
from glasshouse.registry import Card

_TABLES: Final = frozenset({".tsv", ".csv"})
_FIX: Final = "one sentence a line; or of a table the columns: text:FILE.tsv#SENTENCE,LABEL, counted from 1"


_Columns = tuple[int, int]
"""Columns of sentence and label in a table, counted from 1; 0: no label."""


@Card(summary="text:PATH, sentences one a line (a file, a file per class, folders per split) or in a .tsv")
def text(where: str, *, resize: int | None = None) -> Texts:
    """Read the sentences below ``where``, in UTF-8.

    A single file is one class. In a folder every file is a class, named after the file, unless the files are
    called ``train``, ``val`` and ``test``, or lie in folders of these names. ``#4,2`` selects the columns of
    sentence and label in a table.

    Raises:
        BadFile: no files, not UTF-8, too large, or a table row without these columns.
    """
    del resize  # for images only
    name = f"text:{where}"
    place, _, columns = where.partition("#")
    chosen = _numbers(columns, name) if columns else (1, 0)
    path = Path(place).expanduser()
    if not path.is_dir():
        files = {("train", path.stem): require_existing(place, name=name)}
    else:
        root = require_existing(place, name=name, folder=True)
        files = {key: require_inside(f, root, name=name) for key, f in _files(root, name).items()}
    lines = [(split, file, line) for (split, file), p in files.items() for line in _read(p, chosen, name)]
    table_labels = sorted({label for _, _, (_, label) in lines if label})
    classes = table_labels or sorted({file for _, file in files} - set(SPLITS)) or ["all"]
    rows = [
        (split, sentence, classes.index(label if table_labels else file) if len(classes) > 1 else 0)
        for split, file, (sentence, label) in lines
    ]
    sentences, labels = {}, {}
    for part in dict.fromkeys(split for split, _ in files):
        sentences[part] = [sentence for split, sentence, _ in rows if split == part]
        labels[part] = np.array([number for split, _, number in rows if split == part], dtype=np.int64)
    return Texts(
        name=name,
        sentences=sentences,
        labels=labels,
        class_names=tuple(classes) if len(classes) > 1 else (classes[0], "other"),
    )


def _files(root: Path, name: str) -> dict[tuple[str, str], Path]:
    """Files by split and by name without suffix."""
    folders = [root / split for split in SPLITS if (root / split).is_dir()]
    files = {}
    for folder in folders or [root]:
        for path in sorted(p for p in folder.iterdir() if p.is_file() and not p.name.startswith(".")):
            split = folder.name if folders else path.stem if path.stem in SPLITS else "train"
            files[split, path.stem] = path
    if not files:
        raise BadFile(f"data '{name}'", needs="files with sentences", got="none", fix=_FIX)
    return files


def _numbers(words: str, name: str) -> _Columns:
    numbers = words.split(",")
    if len(numbers) > 2 or not all(n.isascii() and n.isdecimal() and 1 <= int(n) <= 999 for n in numbers):
        raise BadFile(f"data '{name}'", needs="columns as #4 or #4,2", got=shorten(words), fix=_FIX)
    sentence, label = (*map(int, numbers), 0)[:2]
    return sentence, label


def _read(path: Path, columns: _Columns, name: str) -> list[tuple[str, str]]:
    """Sentence and label of every non-empty line."""
    subject = f"data '{name}', '{path.name}'"
    try:
        lines = read_limited(path, limits.FILE_BYTES, subject=subject).decode().splitlines()
    except UnicodeDecodeError as error:
        raise BadFile(subject, needs="text in UTF-8", got=str(error), fix="convert it (iconv)") from error
    if path.suffix not in _TABLES:
        return [(line.strip(), "") for line in lines if line.strip()]
    sign = "\t" if path.suffix == ".tsv" else ","
    plain = sign == "\t"  # in a .tsv, quotes are part of the sentences
    table = csv.reader(lines, delimiter=sign, quoting=csv.QUOTE_NONE if plain else csv.QUOTE_MINIMAL)
    return [_cells(row, columns, subject) for row in table if row]


def _cells(row: Sequence[str], columns: _Columns, subject: str) -> tuple[str, str]:
    if len(row) < max(columns):
        got = f"a line of {len(row)}: {shorten(' '.join(row))}"
        raise BadFile(subject, needs=f"{max(columns)} columns", got=got, fix=_FIX)
    sentence, label = columns
    named = row[label - 1].strip() if label else ""
    if label and not named:
        raise BadFile(subject, needs="a label in every row", got=shorten(" ".join(row)), fix=_FIX)
    return row[sentence - 1].strip(), named
