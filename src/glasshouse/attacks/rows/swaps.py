"""Rows improved cell by cell: every other level of a category, other numbers, and two rows' cells exchanged.

A search over relaxed rows stops where a row has one wrong level, or two rows have each other's: no small step
leads out, since what lies between two levels has a larger loss than either. So row after row, all changes of
one cell are tried, and the best is kept where the loss falls; in between numbers alone are moved by their
slope, as whole rows with wrong numbers hide right levels.

Source: own; coordinate search is as old as Hooke & Jeeves 1961, "Direct Search", Journal of the ACM 8(2).

Shape letters: B rows, F entries of a row, K candidates.
"""

from collections.abc import Callable
from typing import Final

import torch
from torch import Tensor

from glasshouse.modalities.row import Row

AT_ONCE: Final = 256
"""Candidates whose losses are computed together."""
SLIDES: Final = 150
"""Steps of numbers alone."""
RATE: Final = 0.02
"""Size of the first of them, on a column's range."""
STEPS: Final = (0.01, 0.02, 0.05, 0.1, 0.2)
"""By how much a number is changed up or down, on its column's range."""
Loss = Callable[[Tensor, Tensor], Tensor]
"""Rows (K, B, F) and labels (K, B) → (K,)."""


def improve(rows: Tensor, labels: Tensor, table: Row, loss: Loss, *, passes: int, enough: float) -> Tensor:
    """Valid rows (B, F) after so many passes over all of them, fewer where nothing helps.

    Args:
        rows: valid rows.
        labels: of the rows, (B,).
        table: the columns.
        loss: what falls.
        passes: at most.
        enough: loss at which the search ends.
    """
    for _ in range(passes):
        before = rows
        rows, least = slide(rows, labels, table, loss)
        for row in range(len(rows)):
            if least <= enough:
                return rows
            tried = changes(rows, row, table)
            with torch.no_grad():
                parts = [loss(some, labels.expand(len(some), -1)) for some in torch.split(tried, AT_ONCE)]
            losses = torch.cat(parts)
            if float(losses.min()) < least:
                rows, least = tried[int(losses.argmin())], float(losses.min())
        if torch.equal(rows, before):
            break
    return rows


def changes(rows: Tensor, row: int, table: Row) -> Tensor:
    """Rows (B, F) with one cell of ``row`` changed, or exchanged with another row's, (K, B, F).

    Examples:
        >>> from glasshouse.modalities.row import Column
        >>> table = Row(columns=(Column(name="ward", kind="categorical", levels=("a", "b", "c")),))
        >>> changes(torch.eye(3)[[0, 1]], 0, table)[:, :, :].argmax(2).tolist()
        [[1, 1], [2, 1], [1, 0]]
    """
    found = []
    for column, place in table.places():
        for cell in _others(rows[row, place], column.kind):
            found.append(rows.clone())
            found[-1][row, place] = cell
        for other in range(len(rows)):
            if not torch.equal(rows[row, place], rows[other, place]):
                found.append(rows.clone())
                found[-1][row, place], found[-1][other, place] = rows[other, place], rows[row, place]
    return torch.stack(found)


def _others(cell: Tensor, kind: str) -> list[Tensor]:
    """What may stand in the place of a cell."""
    if kind == "categorical":
        levels = torch.eye(len(cell)).to(cell)
        return [level for level in levels if not torch.equal(level, cell)]
    if kind == "binary":
        return [1 - cell]
    moved = [(cell + sign * step).clamp(0, 1) for step in STEPS for sign in (-1, 1)]
    return [*moved, torch.zeros_like(cell)]


def slide(rows: Tensor, labels: Tensor, table: Row, loss: Loss) -> tuple[Tensor, float]:
    """The rows with numbers moved by Adam, where the loss is least on the way, and that loss."""
    numeric = torch.zeros(rows.shape[-1], dtype=torch.bool, device=rows.device)
    for column, place in table.places():
        numeric[place] = column.numeric
    with torch.no_grad():
        best, least = rows, float(loss(rows[None], labels[None]))
    if not numeric.any():
        return best, least
    free = rows[:, numeric].clone().requires_grad_()
    search = torch.optim.Adam([free], lr=RATE)
    steps = torch.optim.lr_scheduler.CosineAnnealingLR(search, SLIDES)
    for _ in range(SLIDES):
        moved = rows.clone()
        moved[:, numeric] = free
        value = loss(moved[None], labels[None]).sum()
        if float(value.detach()) < least:
            best, least = moved.detach().clone(), float(value.detach())
        search.zero_grad()
        value.backward()  # type: ignore[no-untyped-call]  # torch's own
        search.step()
        steps.step()
        with torch.no_grad():
            free.clamp_(0, 1)
    return best, least
