"""Rows of several searches in one batch: cut where memory ends, with the same values."""

import pytest
import torch
from torch import Tensor

from glasshouse.attacks.parts.search import rows as module
from glasshouse.attacks.parts.search.rows import Evaluation, Rows, with_labels

POINTS = torch.randn((6, 2, 3), generator=torch.Generator().manual_seed(0))


def loss(points: Tensor, rows: Rows) -> Tensor:
    """Depends on the row, so that a piece that is told the wrong rows shows."""
    return (points.sin() * (1 + rows.index[:, None, None])).flatten(1).sum(1) + torch.tensor(rows.victims)


def expected() -> tuple[Tensor, Tensor]:
    points = POINTS.clone().requires_grad_()
    values = loss(points, Rows.of(POINTS, victims=3))
    return values.detach(), torch.autograd.grad(values.sum(), points)[0]


@pytest.mark.parametrize("most", [1, 2, 4, 6])
def test_out_of_memory_is_cut_and_tried_again(most, caplog):
    sizes = []

    def narrow(points: Tensor, rows: Rows) -> Tensor:
        sizes.append(len(points))
        if len(points) > most:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return loss(points, rows)

    evaluate = Evaluation(narrow)
    for _ in range(2):
        for one, other in zip(evaluate(POINTS, Rows.of(POINTS, victims=3)), expected(), strict=True):
            torch.testing.assert_close(one, other)
    assert ("candidates are evaluated at a time" in caplog.text) == (most < 6)
    assert sum(size > most for size in sizes) == {1: 2, 2: 2, 4: 1, 6: 0}[most]  # learnt once, kept


def test_one_row_that_does_not_fit_is_an_error():
    def never(points: Tensor, rows: Rows) -> Tensor:
        raise torch.OutOfMemoryError("CUDA out of memory")

    with pytest.raises(torch.OutOfMemoryError):
        Evaluation(never)(POINTS, Rows.of(POINTS, victims=3))


def test_a_large_batch_is_measured_and_cut_beforehand(monkeypatch):
    """The graph of a row of sines keeps its 24 bytes and a few of its index: two rows fit into 80."""
    monkeypatch.setattr(module, "LARGE", 1)
    sizes = []

    def counted(points: Tensor, rows: Rows) -> Tensor:
        sizes.append(len(points))
        return loss(points, rows)

    monkeypatch.setattr(module, "room", lambda device: 10**9)
    Evaluation(counted)(POINTS, Rows.of(POINTS, victims=3))
    assert sizes == [1, 6]
    sizes.clear()
    monkeypatch.setattr(module, "room", lambda device: 1)
    values, slopes = Evaluation(counted)(POINTS, Rows.of(POINTS, victims=3))
    assert sizes == [1] * 7
    torch.testing.assert_close((values, slopes), expected())


def test_labels_and_victims_go_with_their_rows():
    labels = torch.arange(6)[:, None]
    seen = []

    def labelled(points, labels, derivative, victims=None):
        seen.append((labels[:, 0].tolist(), victims, derivative))
        return points.flatten(1).sum(1)

    whole = Rows.of(POINTS, victims=3)
    picked = whole.keep(torch.tensor([1, 4]))
    with_labels(labelled, labels)(POINTS[picked.index], picked)
    with_labels(labelled, labels)(POINTS, whole)
    assert seen == [([1, 4], (0, 2), True), ([0, 1, 2, 3, 4, 5], (0, 0, 1, 1, 2, 2), True)]
