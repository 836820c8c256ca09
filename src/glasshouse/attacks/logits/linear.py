"""Linear inversion: ridge regression from prediction vectors to images, in the place of a network.

Where uploads are nearly uniform, what they say of an image is a small, linear part of it, which the
regression finds in closed form. A query lies hundreds of times their spread away: the direction is taken
from the regression, and the length, which the extrapolation leaves open, from the images.

Shape letters: n images, D entries of a prediction vector, L queries.
"""

from dataclasses import dataclass
from typing import Final, final

import torch
from torch import Tensor

from glasshouse.attacks.logits.invert import Task
from glasshouse.limits import Positive, check_ranges

TINY: Final = torch.finfo(torch.float32).tiny


@final
@dataclass(frozen=True, kw_only=True)
class RidgeInversion:
    """Settings of the regression.

    Attributes:
        penalty: on the squared weights, relative to the mean variance of an entry of the predictions.
        spread: size of what is added to the prior image, relative to how far images are from theirs (root
            mean squares).
    """

    penalty: Positive = 0.1
    spread: Positive = 1.0

    def __post_init__(self) -> None:
        check_ranges(self, "ridge inversion")


def invert_by_ridge(task: Task, *, how: RidgeInversion) -> Tensor:
    """Images of the task's queries after each round, each from that round alone, (rounds, L, C, H, W).

    Without prior images, deviations are counted from the mean image. The network's settings are not used.
    """
    images, priors, goals = task.images, task.priors, task.goals
    if priors is None or goals is None:
        priors = goals = images.mean(0, keepdim=True)
    deviations = (images - priors).flatten(1)
    deviations = deviations - deviations.mean(0)
    length = how.spread * deviations.square().mean().sqrt()
    by_round = []
    for table in task.vectors:
        directions = _weights(table, task.queries, penalty=how.penalty) @ deviations  # (L, C H W)
        size = directions.square().mean(1, keepdim=True).sqrt().clamp(min=TINY)
        by_round.append(goals + (length * directions / size).view(-1, *images.shape[1:]))
    return torch.stack(by_round)


def _weights(table: Tensor, queries: Tensor, *, penalty: float) -> Tensor:
    """Weight of each image in the prediction of each query, up to one factor, (L, n); zero for a constant."""
    middle = table.mean(0)
    centred = table - middle
    scale = centred.square().mean().sqrt()
    if scale <= torch.finfo(table.dtype).eps * table.abs().max():
        return table.new_zeros(len(queries), len(table))
    entries, targets = (centred / scale).double(), ((queries - middle) / scale).double()
    gram = entries.T @ entries / len(entries)
    gram += penalty * torch.eye(len(gram), dtype=gram.dtype, device=gram.device)  # its mean diagonal is 1
    slopes: Tensor = torch.linalg.solve(gram, targets.T)  # (D, L)
    return (slopes.T @ entries.T).to(table.dtype)
