"""Linear inversion: ridge regression from prediction vectors to images, in the place of a network.

Where uploads are nearly uniform, what they say of an image is a small, linear part of it, which the
regression finds in closed form. A query lies hundreds of times their spread away: the direction is taken
from the regression, and the length, which the extrapolation leaves open, from the images.

Shape letters: n images, D entries of a prediction vector, L queries, P public people.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, final

import torch
from torch import Tensor
from torch.nn import functional as F

from glasshouse.attacks.logits.invert import Task
from glasshouse.errors import BadValue
from glasshouse.limits import Positive, check_ranges

FOLDS: Final = 5
"""Parts of the public people, each left out in turn when a penalty is chosen."""
SIDE: Final = 16
"""Pixels along each side of the averaged images that a choice compares."""
COMPARED: Final = 1000
"""Largest number of public people that a choice compares."""
TINY: Final = torch.finfo(torch.float32).tiny


@final
@dataclass(frozen=True, kw_only=True)
class RidgeInversion:
    """Settings of the regression.

    Attributes:
        penalties: on the squared weights, relative to the mean variance of an entry of the predictions; of
            several, :func:`choose_penalty` takes one per federation.
        spread: size of what is added to the prior image, relative to how far images are from theirs (root
            mean squares).
    """

    penalties: tuple[Positive, ...] = (0.01, 0.03, 0.1, 0.3, 1.0)
    spread: Positive = 1.0

    def __post_init__(self) -> None:
        check_ranges(self, "ridge inversion")
        if not self.penalties:
            raise BadValue(
                "ridge inversion", needs="at least one penalty", got="none", fix="set ridge.penalties = [0.1]"
            )


def invert_by_ridge(task: Task, *, penalty: float, spread: float = 1.0) -> Tensor:
    """Images of the task's queries after each round, each from that round alone, (rounds, L, C, H, W).

    Without prior images, deviations are counted from the mean image. The network's settings are not used.
    """
    images, goals = task.images, task.goals
    if task.priors is None or goals is None:
        goals = images.mean(0, keepdim=True)
    deviations = _deviations(task).flatten(1)
    deviations = deviations - deviations.mean(0)
    length = spread * deviations.square().mean().sqrt()
    by_round = []
    for table in task.vectors:
        directions = _weights(table, task.queries, penalty=penalty) @ deviations  # (L, C H W)
        size = directions.square().mean(1, keepdim=True).sqrt().clamp(min=TINY)
        by_round.append(goals + (length * directions / size).view(-1, *images.shape[1:]))
    return torch.stack(by_round)


def choose_penalty(
    tasks: Sequence[Task], people: Tensor, queries: Tensor | None, *, penalties: Sequence[float]
) -> float:
    """The penalty under which public people who were left out are drawn most like themselves.

    Every fifth of the people is left out of the regression in turn and drawn from the rest; what is drawn of
    somebody is ranked by the cosine with all public people's mean images. The best mean rank over clients
    wins, of equal ones the larger penalty. No private class takes part.

    Args:
        tasks: one per client, of which the last round is read.
        people: whom each image shows, (n,).
        queries: what would be asked for each person, (P, D), in the order of their ids; None: nobody could
            be asked for by name, and the predictions on a person's own images are asked.
        penalties: to choose from.
    """
    ids = torch.unique(people)
    if len(penalties) == 1 or len(ids) < 2 * FOLDS:
        return sorted(penalties)[len(penalties) // 2]
    step = -(-len(ids) // COMPARED)
    ids, queries = ids[::step], None if queries is None else queries[::step]
    folds = torch.arange(len(ids), device=ids.device) % FOLDS
    scores = torch.zeros(len(penalties), dtype=torch.float64)
    for task in tasks:
        small = F.adaptive_avg_pool2d(_deviations(task), SIDE).flatten(1).double()
        means = torch.stack([small[people == who].mean(0) for who in ids])
        table = task.vectors[-1]
        asked = queries
        if asked is None:
            asked = torch.stack([table[people == who].mean(0) for who in ids])
        for fold in range(FOLDS):
            out = folds == fold
            left_out = torch.isin(people, ids[out])
            middle = small[~left_out].mean(0)
            for i, penalty in enumerate(penalties):
                weights = _weights(table[~left_out], asked[out], penalty=penalty).double()
                drawn = weights @ (small[~left_out] - middle)
                scores[i] += _mean_rank(drawn, means - middle, torch.where(out)[0])
    # Equal up to rounding is equal: the larger penalty then, which depends less on noise.
    best = float(scores.min()) + 1e-9
    return max(p for p, score in zip(penalties, scores.tolist(), strict=True) if score <= best)


def _mean_rank(drawn: Tensor, candidates: Tensor, right: Tensor) -> float:
    """How many candidates are at least as near to what is drawn as the right one, on average."""
    near = F.normalize(drawn, dim=1) @ F.normalize(candidates, dim=1).T
    own = near.gather(1, right[:, None])
    return float((near >= own).double().sum(1).mean())


def _deviations(task: Task) -> Tensor:
    """How the images differ from their prior images, or from their mean without any, (n, C, H, W)."""
    priors = task.images.mean(0, keepdim=True) if task.priors is None else task.priors
    return task.images - priors


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
