"""The mean image of several trials (ours, not the paper's).

Shape letters: R trials, B images of one trial, C channels, H and W pixels.
"""

import scipy.optimize
import torch
from torch import Tensor


def mean_images(images: Tensor, labels: Tensor) -> Tensor:
    """The mean of the trials, (B, C, H, W).

    Images of one label may have another order in every trial, as the loss does not depend on it: those of
    other trials are put into the order in which they are nearest to the first trial's.

    Args:
        images: (R, B, C, H, W), R >= 1.
        labels: (B,), the same in all trials.

    Examples:
        >>> trials = torch.tensor([[0.1, 0.9], [0.7, 0.3]]).reshape(2, 2, 1, 1, 1)
        >>> mean_images(trials, torch.tensor([4, 4])).flatten()
        tensor([0.2000, 0.8000])
        >>> mean_images(trials, torch.tensor([4, 5])).flatten()
        tensor([0.4000, 0.6000])
    """
    first, total = images[0], images[0].clone()
    others = labels[:, None] != labels[None]
    for trial in images[1:]:
        cost = (first[:, None] - trial[None]).square().flatten(2).mean(2).double()
        cost[others] = 1 + cost.sum()  # dearer than any order within the labels
        _, order = scipy.optimize.linear_sum_assignment(cost.cpu().numpy())
        total += trial[torch.from_numpy(order).to(trial.device)]
    return total / len(images)
