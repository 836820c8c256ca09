"""Candidates of several searches as the rows of one batch, evaluated in pieces that fit into memory.

Shape letters: V victims, R restarts of each, N = V * R rows, victim after victim.

The victims of a cell answer the same broadcast: only the updates that candidates are compared with differ.
Every row has its victim, and no row's loss depends on another row, so a batch can be split anywhere.
"""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol, final

import torch
from torch import Tensor

LOG = logging.getLogger("glasshouse")

LARGE: Final = 2**18
"""A batch of up to this many values, over all rows, is evaluated whole, without checking memory."""

LOOKS: Final = 5
"""Iterations between checks whether a search is over; each check synchronises the GPU."""

SHARE: Final = 0.8
"""Share of a GPU's free memory that one graph may use."""

HOST_BYTES: Final = 4 * 2**30
"""Bytes that one graph may use on the CPU, in each process: a constant, so that no result depends on
the machine."""


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Rows:
    """A selection of r rows of a batch.

    Attributes:
        index: (r,) int64, indices into the whole batch, on the device of the candidates.
        victims: the victim of each, in ascending order.
    """

    index: Tensor
    victims: tuple[int, ...]

    @classmethod
    def of(cls, start: Tensor, *, victims: int) -> "Rows":
        """All rows of ``start`` (N, ...), equally many for each victim.

        Examples:
            >>> Rows.of(torch.zeros(4, 2), victims=2).victims
            (0, 0, 1, 1)
        """
        restarts = len(start) // victims
        return cls(
            index=torch.arange(len(start), device=start.device),
            victims=tuple(v for v in range(victims) for _ in range(restarts)),
        )

    def __len__(self) -> int:
        return len(self.victims)

    def pick(self, values: Tensor) -> Tensor:
        """These rows of ``values`` (N, ...), which cover the whole batch."""
        return values if len(values) == len(self) else values[self.index]

    def put(self, values: Tensor, *, into: Tensor) -> Tensor:
        """``into`` (N, ...) with these rows replaced by ``values`` (r, ...)."""
        return values if len(into) == len(self) else into.index_copy(0, self.index, values)

    def keep(self, places: Tensor) -> "Rows":
        """The subset at ``places`` (k,), which index these rows."""
        victims = tuple(self.victims[place] for place in places.tolist())
        return Rows(index=self.index[places], victims=victims)

    def split(self, size: int) -> list["Rows"]:
        """Pieces of at most ``size`` rows."""
        places = range(0, len(self), size)
        return [Rows(index=self.index[i : i + size], victims=self.victims[i : i + size]) for i in places]


RowLoss = Callable[[Tensor, Rows], Tensor]
"""(candidates (r, ...), their rows) → losses (r,), differentiable, rows independent."""


class Labelled(Protocol):
    """A loss of labelled candidates."""

    def __call__(
        self, points: Tensor, labels: Tensor, derivative: bool, victims: Sequence[int] | None = None
    ) -> Tensor:
        """(R,) losses of candidates (R, B, C, H, W) with labels (R, B); ``derivative``: keep the graph."""


def with_labels(loss: Labelled, labels: Tensor) -> RowLoss:
    """``loss`` of rows whose labels (N, B) are known."""
    return lambda points, rows: loss(points, rows.pick(labels), True, rows.victims)


@final
class Evaluation:
    """Values and gradients of a loss at many rows: in one graph if that fits into memory, else in pieces.

    In a large batch, the memory per row is measured on the first row. If a GPU runs out of memory anyway,
    pieces are halved and the evaluation is repeated, down to single rows.

    Args:
        loss: the loss to evaluate.
    """

    def __init__(self, loss: RowLoss) -> None:
        self._loss, self._size = loss, 0

    def __call__(self, points: Tensor, rows: Rows) -> tuple[Tensor, Tensor]:
        """Losses (r,) of points (r, ...), and their gradients.

        Raises:
            torch.OutOfMemoryError: a single row does not fit into memory.
        """
        if not self._size:
            self._size = self._fitting(points, rows) if points.numel() > LARGE else len(rows)
        while True:
            try:
                return self._in_pieces(points, rows)
            except torch.OutOfMemoryError:
                if self._size == 1:
                    raise
            self._size = max(1, min(self._size, len(rows)) // 2)
            torch.cuda.empty_cache()
            LOG.warning("out of memory: %d candidates are evaluated at a time", self._size)

    def _in_pieces(self, points: Tensor, rows: Rows) -> tuple[Tensor, Tensor]:
        if len(rows) <= self._size:
            return self._whole(points, rows)
        parts = zip(torch.split(points, self._size), rows.split(self._size), strict=True)
        values, slopes = zip(*(self._whole(x, part) for x, part in parts), strict=True)
        return torch.cat(values), torch.cat(slopes)

    def _whole(self, points: Tensor, rows: Rows) -> tuple[Tensor, Tensor]:
        points = points.detach().requires_grad_()
        values = self._loss(points, rows)
        (slope,) = torch.autograd.grad(values.sum(), points)
        return values.detach(), slope

    def _fitting(self, points: Tensor, rows: Rows) -> int:
        """Number of rows whose graphs fit into memory together, estimated from the first row."""
        saved: dict[int, int] = {}

        def weigh(tensor: Tensor) -> Tensor:
            saved[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(weigh, lambda tensor: tensor):
            self._whole(points[:1], rows.split(1)[0])
        fitting = max(1, room(points.device) // max(1, sum(saved.values())))
        if fitting < len(rows):
            LOG.info("%d of %d candidates are evaluated at a time: memory", fitting, len(rows))
        return min(fitting, len(rows))


def room(device: torch.device) -> int:
    """Bytes that one graph may use on ``device``."""
    if device.type == "cuda":
        return int(SHARE * torch.cuda.mem_get_info(device)[0])
    return HOST_BYTES
