"""Findings, contrasts and utility as CSV and as LaTeX tables."""

import csv
import io
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final

from glasshouse.disk import write_text
from glasshouse.outside.text import csv_cell, file_name, visible
from glasshouse.report import numbers, words
from glasshouse.report.markdown import contrast_key, finding_key, pivot, setting_words
from glasshouse.results.judgement import OUT
from glasshouse.results.records import Contrast, Finding, Result, Utility
from glasshouse.results.rows import flat

_SPECIAL: Final = str.maketrans(
    {
        **{c: f"\\{c}" for c in "&%$#_{}"},
        "\\": r"\textbackslash{}",
        "~": r"\textasciitilde{}",
        "^": r"\textasciicircum{}",
        numbers.MINUS: "$-$",
        numbers.NBSP: "~",
        "–": "--",
        "≤": r"$\leq$",
        "≥": r"$\geq$",
        "ε": r"$\varepsilon$",
        "δ": r"$\delta$",
        "σ": r"$\sigma$",
        "×": r"$\times$",
    }
)


def csv_files(result: Result, folder: Path) -> list[Path]:
    """Write ``findings.csv``, ``contrasts.csv`` and ``utility.csv``; a table without rows is left out."""
    parts = [(name, getattr(result, name)) for name in ("findings", "contrasts", "utility")]
    return [_write_csv(rows, folder / f"{name}.csv") for name, rows in parts if rows]


def latex_files(result: Result, folder: Path) -> list[Path]:
    """Write a ``tabular`` (package booktabs) for each scenario's findings, contrasts and utility."""
    paths = []
    for name in dict.fromkeys(f.scenario for f in result.findings):
        own = result.of(name)
        tables = {
            "findings": _findings(own.findings),
            "contrasts": _contrasts(own.contrasts),
            "utility": _utility(own.utility),
        }
        for kind, text in tables.items():
            if text:
                path = folder / f"{file_name(name)}-{kind}.tex"
                write_text(path, text)
                paths.append(path)
    return paths


def _write_csv(rows: Sequence[Any], path: Path) -> Path:
    tables = [{csv_cell(k): csv_cell(v) for k, v in flat(row).items()} for row in rows]
    columns = dict.fromkeys(key for table in tables for key in table)
    buffer = io.StringIO()
    writer = csv.DictWriter(buffer, list(columns), lineterminator="\n")
    writer.writeheader()
    writer.writerows(tables)
    write_text(path, buffer.getvalue())
    return path


def _findings(findings: Sequence[Finding]) -> str:
    metrics, rows = pivot(findings, finding_key, _cell)
    body = [(*map(latex, key), *cells) for key, cells in rows.items()]
    return _tabular(("setting", "attack", "n", *metrics), body)


def _cell(f: Finding) -> str:
    """The value with its interval, in bold if the verdict is a leak."""
    if f.verdict == "no power":
        return "no power"
    text = latex(_interval(f.value, f.low, f.high))
    return rf"\textbf{{{text}}}" if f.verdict in OUT else text


def _contrasts(pairs: Sequence[Contrast]) -> str:
    metrics, rows = pivot(pairs, contrast_key, lambda c: latex(_interval(c.difference, c.low, c.high)))
    body = [(*map(latex, key), *cells) for key, cells in rows.items()]
    return _tabular(("setting", "attack", "against", "n", *metrics), body)


def _utility(rows: Sequence[Utility]) -> str:
    cells = (
        (setting_words(u), words.under(u.defenses), str(u.n), _interval(u.value, u.low, u.high)) for u in rows
    )
    body = [tuple(map(latex, row)) for row in cells]
    return _tabular(("setting", "defence", "n", rows[0].metric), body) if rows else ""


def _interval(value: float, low: float, high: float) -> str:
    return f"{numbers.plain(value)} {numbers.plain_ends(low, high)}"


def _tabular(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A LaTeX table; ``rows`` are already escaped. Empty if there are none."""
    lines = [" & ".join(row) + r" \\" for row in rows]
    if not lines:
        return ""
    begin = rf"\begin{{tabular}}{{{'l' * len(head)}}}"
    titles = " & ".join(map(latex, head)) + r" \\"
    return "\n".join([begin, r"\toprule", titles, r"\midrule", *lines, r"\bottomrule", r"\end{tabular}", ""])


def latex(text: str) -> str:
    r"""Escape ``text`` for LaTeX.

    Examples:
        >>> latex("batch_size 4, 50 %")
        'batch\\_size 4, 50 \\%'
    """
    return visible(text).translate(_SPECIAL)
