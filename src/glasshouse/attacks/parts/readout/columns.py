"""Recover inputs of a linear layer from its gradients, without knowing which examples activate which units.

With Z = Y wᵀ + b and a ReLU behind it, the gradient of row q of the weight is the sum over examples of
dZ[i, q] · Y[i], that of the bias the sum of dZ[i, q]. If exactly one example activates a unit, the quotient
of the two is that example's input Y[i]; if several do, it is a mixture of their inputs. The attacker must
distinguish the cases: inputs behind a ReLU are never negative, two units rarely give the same vector unless
it is a single input, and a mixture of vectors that other units gave is redundant.

Source: Pan et al. 2022 (neuron exclusivity), USENIX Security; Dabholkar et al. 2025 (Maui), section 5.2.
Where we differ: the paper counts leaked rows knowing the true inputs; the tests above are blind. In noisy
updates, units that agree are combined with least-squares weights.

Shape letters: N units, D entries of the layer's input, Q candidates, R vectors read.
"""

from dataclasses import dataclass
from typing import Literal, final

import numpy as np
import scipy
import torch
from torch import Tensor

from glasshouse.errors import BadValue

Readout = Literal["unexplained", "nonnegative", "confirmed", "all"]
"""Candidates to keep. ``all``; ``nonnegative``: those without a negative entry; ``unexplained``: of these,
those that are not mixtures of confirmed ones; ``confirmed``: those given by at least two units. In a noisy
update: ``confirmed``, or all."""

SAME = 1e-3
"""Relative distance below which two candidates are the same vector."""
_NOTHING = 1e-12
_NEGATIVE = 1e-4
_RANK = 1e-5  # of the largest singular value: float32 rounds below it
_REACHED = 5.0  # a unit counts as reached above this many standard deviations of the noise


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Read:
    """Vectors read from one gradient.

    Attributes:
        vectors: (R, D), distinct, the most confident first.
        units: (R,), number of units that gave each.
        noisy: whether the update was read as noisy.
    """

    vectors: Tensor
    units: Tensor
    noisy: bool = False


def read_columns(
    weight: Tensor, bias: Tensor, *, limit: int, readout: Readout = "unexplained", positive: bool = True
) -> Read:
    """Recover a layer's inputs from its gradient.

    Args:
        weight: (N, D), gradient of the weight.
        bias: (N,), of the bias.
        limit: maximum number of vectors: the number of examples behind the gradient.
        readout: see :data:`Readout`.
        positive: the layer's inputs are never negative.

    Raises:
        BadValue: shapes do not fit.

    Examples:
        >>> y = torch.tensor([[1.0, 0.0, 2.0], [0.0, 3.0, 1.0]])
        >>> dz = torch.tensor([[0.5, 0.0, -0.2, 0.0], [0.0, 0.1, 0.4, 0.0]])  # the third unit mixes both
        >>> read_columns(dz.T @ y, dz.sum(0), limit=2).vectors.tolist()
        [[1.0, 0.0, 2.0], [0.0, 3.0, 1.0]]
    """
    if weight.ndim != 2 or bias.shape != weight.shape[:1]:
        raise BadValue(
            "read-out of a linear layer",
            needs="gradients of weight (N, D) and bias (N,)",
            got=f"{tuple(weight.shape)} and {tuple(bias.shape)}",
            fix="give both of one layer",
        )
    w, b = weight.double(), bias.double()
    reached = b.abs() > _NOTHING * float(b.abs().max())
    candidates = w[reached] / b[reached, None]
    quiet = not bool(reached.all()) or bool((_group_agreeing(candidates).units > 1).any())
    if quiet or _of_few(w, b, limit):
        if positive and readout in ("nonnegative", "unexplained"):
            # Before grouping: a mixture close to an example could represent its group, and discard it too.
            lowest = -_NEGATIVE * candidates.abs().amax(1, keepdim=True)
            candidates = candidates[(candidates >= lowest).all(1)]
        return _select(_group_agreeing(candidates), limit=limit, readout=readout, dtype=weight.dtype)
    return _reached_units(w, b, limit=limit, readout=readout, positive=positive, dtype=weight.dtype)


def _of_few(weight: Tensor, bias: Tensor, examples: int) -> bool:
    """Whether the gradient (N, D + 1) has rank at most ``examples``; with noise it would have full rank.

    False, as the rank says nothing, if the gradient does not have more rows and columns than examples.
    """
    both = torch.cat([weight, bias[:, None]], dim=1)
    if examples >= min(both.shape):
        return False
    values = torch.linalg.svdvals(both)
    return bool(values[examples] <= _RANK * values[0])


def _group_agreeing(candidates: Tensor) -> Read:
    """Merge candidates (Q, D) that agree; those given by most units come first."""
    if not len(candidates):
        return Read(vectors=candidates, units=torch.zeros(0, dtype=torch.int64, device=candidates.device))
    norms = candidates.norm(dim=1).clamp_min(1e-300)
    near = torch.cdist(candidates, candidates, compute_mode="donot_use_mm_for_euclid_dist") <= SAME * norms
    group = near.double().argmax(1)  # the first that agrees
    first, units = torch.unique(group, return_counts=True)
    order = units.argsort(descending=True, stable=True)
    return Read(vectors=candidates[first[order]], units=units[order])


def _select(read: Read, *, limit: int, readout: Readout, dtype: torch.dtype) -> Read:
    vectors, units = read.vectors, read.units
    if readout == "confirmed":
        vectors, units = vectors[units > 1], units[units > 1]
    if readout == "unexplained":
        fresh = _select_unexplained(vectors, units > 1)
        vectors, units = vectors[fresh], units[fresh]
    return Read(vectors=vectors[:limit].to(dtype), units=units[:limit])


def _select_unexplained(vectors: Tensor, sure: Tensor) -> Tensor:
    """A mask of the candidates that are not mixtures, with nonnegative weights, of the ``sure`` ones."""
    keep = sure.clone()
    vectors = vectors.cpu()
    base = vectors[sure.cpu()].T.numpy()
    for i in (~sure).nonzero()[:, 0].tolist():
        goal = vectors[i].numpy()
        residual = scipy.optimize.nnls(base, goal)[1] if base.shape[1] else np.inf
        keep[i] = bool(residual > 5 * SAME * np.linalg.norm(goal))
    return keep


def _reached_units(
    weight: Tensor, bias: Tensor, *, limit: int, readout: Readout, positive: bool, dtype: torch.dtype
) -> Read:
    """Read a noisy gradient: take units far above the noise, combine those that agree, the strongest first.

    All units have the same noise level, and most are not activated, so the median of |bias| estimates it.
    Noise makes entries negative and hides mixtures: only the readout ``confirmed`` keeps fewer than all.
    """
    noise = 1.4826 * float(bias.abs().median())
    order = bias.abs().argsort(descending=True, stable=True)
    spread = noise * weight.shape[1] ** 0.5
    groups: list[tuple[Tensor, float, int]] = []  # weighted sum, sum of the weights, units
    for q in (int(q) for q in order if abs(float(bias[q])) > _REACHED * noise):
        one, size = weight[q] / bias[q], float(bias[q].square())
        for i, (total, sizes, members) in enumerate(groups):
            gap = float((one - total / sizes).norm())
            if gap < 1.5 * spread * (1 / size + 1 / sizes) ** 0.5:
                groups[i] = total + size * one, sizes + size, members + 1
                break
        else:
            groups.append((size * one, size, 1))
    kept = [group for group in groups if readout != "confirmed" or group[2] > 1]
    best = sorted(kept, key=lambda group: -group[1])[:limit]
    vectors = torch.stack([total / sizes for total, sizes, _ in best]) if best else weight[:0]
    if positive:
        vectors = vectors.clamp_min(0)
    units = torch.tensor([members for *_, members in best], dtype=torch.int64, device=weight.device)
    return Read(vectors=vectors.to(dtype), units=units, noisy=True)
