"""Directions for the units of a head, one per example of the adversary, for examples similar to it.

Ours, not the paper's. The largest responses to a random direction come from the examples of large norm, which
then share many units while others activate none. The largest responses to the whitened difference of one
example from the mean (Fisher's direction of that example against all others) come from similar examples.
Units are chosen one by one, to cover examples that activate few units so far.

With N units that pass a share 1/B each, an example activates one unit on average and is alone there with
probability 1/e. If its number of units is Poisson, 1 - exp(-1/e) = 0.31 of a batch leak; if it is exactly
one, 1/e = 0.37: an even distribution is the possible gain.

Shape letters: n examples, D features, N units.
"""

import math

import torch
from torch import Tensor

from glasshouse.errors import BadValue

_RIDGE = 1.0  # ridge on the covariance, in mean feature variances; 0.3 to 10 work equally well
_WIDER = 4.0  # factor on shares when units are compared, so that single examples weigh less
_SHARED = -math.log(1 - math.exp(-1))  # an example that a unit passes remains unread with probability 1 - 1/e


def exemplars(features: Tensor, *, units: int, share: float) -> Tensor:
    """Directions (N, D) of length 1, from features (n, D) of the adversary's examples.

    Args:
        features: n ≥ 2, any unit.
        units: N; more than n repeat the best ones.
        share: of the examples that each unit passes, in (0, 1).

    Raises:
        BadValue: fewer than two examples, a feature that is not finite, or identical examples.

    Examples:
        >>> y = torch.randn(40, 4, generator=torch.Generator().manual_seed(0))
        >>> exemplars(y, units=3, share=0.1).norm(dim=1).round(decimals=4).tolist()
        [1.0, 1.0, 1.0]
    """
    y = features.double()
    if len(y) < 2 or not bool(torch.isfinite(y).all()) or bool((y == y[0]).all()):
        raise BadValue(
            "head made from examples",
            needs="finite features of at least two examples that differ",
            got=f"{len(y)} examples, {int(torch.isfinite(y).all(1).sum())} finite",
            fix="raise data.auxiliary, or look at the public features",
        )
    whitened = _whiten(y - y.mean(0))
    directions: Tensor = whitened / whitened.norm(dim=1, keepdim=True).clamp_min(1e-12)
    response = y @ directions.T
    wide = min(0.5, _WIDER * share)
    passing = max(1, round(wide * len(y)))
    reached = torch.zeros_like(response).scatter_(
        0, response.topk(passing, dim=0).indices, min(1.0, share / wide)
    )
    return directions[_evenly(reached, units)].float()


def _whiten(centred: Tensor) -> Tensor:
    """(n, D), Y (YᵀY / n + r)⁻¹ of Y (n, D), columns of mean 0; r: ``_RIDGE`` times their mean variance.

    The same as (YYᵀ / n + r)⁻¹ Y, which is solved where there are more features than examples: a network
    without pooling has 32,768, whose covariance would take 8 GB.
    """
    n, d = centred.shape
    floor = _RIDGE * centred.square().mean().clamp_min(1e-12)
    whitened: Tensor
    if d <= n:
        products = (centred.T @ centred / n).add_(floor * torch.eye(d, dtype=centred.dtype))
        whitened = torch.linalg.solve(products, centred.T).T
    else:
        products = (centred @ centred.T / n).add_(floor * torch.eye(n, dtype=centred.dtype))
        whitened = torch.linalg.solve(products, centred)
    return whitened


def _evenly(reached: Tensor, units: int) -> Tensor:
    """Greedily choose N columns of ``reached`` (n, candidates), each covering the most uncovered examples."""
    unseen = torch.ones(len(reached), dtype=reached.dtype)
    free = torch.ones(reached.shape[1], dtype=torch.bool)
    picks = []
    for _ in range(units):
        if not free.any():
            free[:] = True
        best = int((unseen @ reached).masked_fill(~free, -1).argmax())
        free[best] = False
        unseen = unseen * torch.exp(-_SHARED * reached[:, best])
        picks.append(best)
    return torch.tensor(picks)
