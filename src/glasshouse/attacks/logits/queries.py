"""Queries to an inversion network for a private class: the optimal logits, and the choice among clients.

Source: Takahashi et al. 2023, Eq. 4 to 7 and 11, Appendix A; :func:`choose_surest` is ours (decision 0042).
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from glasshouse.images import ssim, total_variation


def one_hot(targets: int, classes: int) -> Tensor:
    """The prediction of a client that is certain of the class: row j is 1 in column j, (L, J)."""
    return torch.eye(classes)[:targets]


def unsure_server(targets: int, classes: int, *, confidence: float) -> Tensor:
    """The prediction of a server unaware of the class, (L, J): maximises p_j + α·entropy (Eq. 6).

    The authors' code writes the larger value into the columns of the whole batch; here it is in the class's
    own column, as in the paper.

    Args:
        targets: L.
        classes: J.
        confidence: the paper's α, > 0; the larger, the closer to uniform.

    Examples:
        >>> q = unsure_server(1, 3, confidence=1.0)
        >>> round(float(q[0, 0] / q[0, 1]), 3), round(float(q.sum()), 3)
        (2.718, 1.0)
    """
    raised = math.exp(1 / confidence)
    rows = torch.ones(targets, classes) + (raised - 1) * one_hot(targets, classes)
    return rows / (classes - 1 + raised)


def choose_smooth(candidates: Tensor, *, roughness: float) -> Tensor:
    """For each class the client whose image is smooth and least similar to the others' (Eq. 11), (L,).

    With two clients the similarity is the same for both, so that only smoothness decides. Ties go to the
    first. Where we differ: this package's SSIM (Gaussian window of 11), not the authors' (uniform 7).

    Args:
        candidates: (K, L, C, H, W) in [0, 1].
        roughness: the paper's β, weight of the total variation on [-1, 1].
    """
    clients, classes = candidates.shape[:2]
    score = roughness * 2 * total_variation(candidates.flatten(0, 1)).view(clients, classes)
    for a in range(clients):
        for b in range(a + 1, clients):
            alike = ssim(candidates[a], candidates[b]) / (clients - 1)
            score[a] += alike
            score[b] += alike
    return score.argmin(0)


def choose_surest(uploads: Sequence[Tensor], targets: int) -> Tensor:
    """For each class the client that gives it the highest probability on images of other classes, (L,). Ours.

    A client that trained on a class also gives it some probability on other images; other clients do not.

    Args:
        uploads: logits (K, n, J) on the images of D_0, none of which shows a private class; one per round.
        targets: L.

    Examples:
        >>> choose_surest([torch.tensor([[[0.0, 1.0]], [[1.0, 0.0]]])], 2).tolist()
        [1, 0]
    """
    mass = torch.stack([F.softmax(each, 2).mean(1) for each in uploads]).mean(0)  # (K, J)
    return mass[:, :targets].argmax(0)
