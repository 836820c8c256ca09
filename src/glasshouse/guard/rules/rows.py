"""Linear layers with repeated or zero rows or columns."""

from collections.abc import Sequence
from hashlib import blake2b

import torch
from torch import Tensor

from glasshouse.guard.parts import PART, row_parts
from glasshouse.guard.rules.sparse import most_by_sparsity
from glasshouse.guard.vectors import BIN, SMALLEST, Vectors

_SOME = 3  # entries of a row that distinguish most rows
_DIGITS = 5  # precision of rows scaled to largest entry 1: rows equal up to a factor count as equal


def identical_rows(vectors: Sequence[Vectors], reference: Sequence[Vectors] = ()) -> list[str]:
    """Layers with rows, or columns, that occur twice up to a factor; zero ones are reported separately.

    Rows of fewer than ``SMALLEST`` entries are not compared, as short ones agree up to a factor by chance.
    Rows with a value that is not finite have their own rule. Where ``reference`` is pruned, as many as its
    share of zeros makes likely are not reported.
    """
    honest = {v.layer: v for v in reference if v.kind == "linear"}
    sentences = []
    for v in vectors:
        if v.kind != "linear":
            continue
        weight = v.weight
        pruned = honest[v.layer].weight if v.layer in honest else None
        for word, matrix, usual in (
            ("rows", weight, pruned),
            ("columns", weight.T, None if pruned is None else pruned.T),
        ):
            if matrix.shape[1] < 2:
                continue
            # Zero rows are counted apart: they all repeat each other, and pruning makes them.
            zero, twice = _more_than_usual(_repeated(matrix), usual)
            if twice and matrix.shape[1] >= SMALLEST:
                sentences.append(f"{v.layer}: {twice} of {len(matrix)} {word} repeat another, up to a factor")
            if zero:
                sentences.append(f"{v.layer}: {zero} of {len(matrix)} {word} are zero")
    return sentences


def _more_than_usual(found: tuple[int, int], honest: Tensor | None) -> tuple[int, int]:
    """The numbers of zero and of repeated rows; 0 where the honest weight makes as many likely."""
    if honest is None or not any(found):
        return found
    usual = _repeated(honest)
    zero, twice = (n if n > most_by_sparsity(u, honest) else 0 for n, u in zip(found, usual, strict=True))
    return zero, twice


def _repeated(matrix: Tensor) -> tuple[int, int]:
    """Number of zero rows, and number of other rows that repeat an earlier one."""
    entries = range(0, matrix.shape[1], max(1, matrix.shape[1] // 2))[:_SOME]
    # In place: what a loop keeps of each part settles between its blocks, which then cannot be used again.
    top = torch.empty(len(matrix), dtype=torch.double)
    some = torch.empty(len(matrix), len(entries), dtype=torch.double)
    end = 0
    for part in row_parts(matrix):
        begin, end = end, end + len(part)
        m = part if part.dtype in (torch.float32, torch.float64) else part.double()
        top[begin:end] = m.abs().amax(1)
        some[begin:end] = m[:, list(entries)].abs()
    empty = top <= BIN
    place = (~empty & top.isfinite()).nonzero()[:, 0]
    some = (some[place] / top[place, None] * 10**_DIGITS).round()
    number = some @ (10.0**_DIGITS + 1) ** torch.arange(some.shape[1], dtype=torch.double)  # below 2**53
    _, group, size = torch.unique(number, return_inverse=True, return_counts=True)
    alike = place[size[group] > 1]  # candidates: rows that agree in these entries
    seen: set[bytes] = set()
    for some_rows in torch.split(alike, max(1, PART // matrix.shape[1])):
        rows = matrix[some_rows].double() / top[some_rows, None]
        first = rows.gather(1, rows.abs().argmax(1, keepdim=True)).sign()
        rounded = (rows * first).round(decimals=_DIGITS) + 0.0  # -0 is 0
        seen |= {blake2b(row.tobytes(), digest_size=16).digest() for row in rounded.numpy()}
    return int(empty.sum()), len(alike) - len(seen)
