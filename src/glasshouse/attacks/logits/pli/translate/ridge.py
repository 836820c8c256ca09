"""Ridge regression from shifted to clear pixels: the strongest translation without a network."""

import torch
from torch import Tensor

from glasshouse.attacks.logits.pli.translate.pairs import Pairs

STRENGTH = 0.05
"""Weight of the ridge penalty, in multiples of the mean squared norm of an example."""


def ridge(pairs: Pairs, shifted: Tensor) -> Tensor:
    """Clear versions (n, C, H, W) of ``shifted``, in [-1, 1]: in closed form, in the dual."""
    middle_x, middle_y = pairs.shifted.flatten(1).mean(0), pairs.clear.flatten(1).mean(0)
    x, y = pairs.shifted.flatten(1) - middle_x, pairs.clear.flatten(1) - middle_y
    gram = x @ x.T
    gram += STRENGTH * gram.diagonal().mean() * torch.eye(len(x), device=x.device)
    weights = torch.linalg.solve(gram, y)
    predictions = (shifted.flatten(1) - middle_x) @ x.T @ weights + middle_y
    clear: Tensor = predictions.view_as(shifted).clamp(-1, 1)
    return clear
