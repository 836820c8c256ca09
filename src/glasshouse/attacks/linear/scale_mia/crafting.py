"""The crafted linear layers of Scale-MIA: the agreed architecture with chosen weights.

Source: Shi et al. 2025, arXiv:2311.05808, Section IV-C. ``fc1`` measures the mean of its input against one
threshold per row; all later layers but the last are constant, so that every row has the same gradient
delta = sum over classes of A_c (p_c - y_c), where A_c is the slope of logit c. It depends only on the label
as long as p hardly varies.

The paper draws the last layer from U[0, 1) ("paper"). We design it ("ladder"): all classes but one have equal
p and deltas of the same sign, which form a geometric ladder. Then two examples of one bin do not cancel but
mix with unequal weights, and the stronger one often survives; and no class has a delta near 0.

Shape letters: K classes, R rows of ``fc1``, D entries that enter it.
"""

import math
from dataclasses import dataclass
from typing import Literal, final

import torch
from torch import Tensor

from glasshouse.attacks.parts.readout.linear_tail import LinearTail
from glasshouse.rng import Rng
from glasshouse.wire import Terms

Design = Literal["ladder", "paper"]


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Head:
    """Weights for the linear tail.

    Attributes:
        tensors: by state_dict name.
        levels: (K,), delta of one example of each class, float64.
    """

    tensors: dict[str, Tensor]
    levels: Tensor


@final
@dataclass(frozen=True, kw_only=True)
class Strength:
    """Magnitudes of the crafted layers.

    Attributes:
        span: of the ladder, largest over smallest.
        against: ratio of the one negative delta to the largest positive one.
        gain: factor on ``fc1``. The gradient does not shrink with it, so a small gain makes an update large
            relative to the parameters.
        contrast: spread of the logits; if small, p hardly varies.
    """

    span: float
    against: float
    gain: float
    contrast: float


def strength(terms: Terms, round: int, *, design: Design, steps: int, span: float) -> Strength:
    """Magnitudes by kind of update and number of *different* batches; tuned on CIFAR-10's train images.

    ``steps`` 0 stands for several steps on the same batch. Then only the first step should count: a tiny gain
    makes it overshoot, so that every row that was active for an example becomes inactive for all of them;
    positive deltas (except for one weak class) ensure the direction. Inactive rows have no gradient, and the
    round amounts to one step.

    One step: with a tiny gain the update exceeds rounding and additive noise. Several batches: rows must stay
    active for later ones. Each step moves the thresholds by about rate · contrast / gain² (in bins, times the
    square root of the batch size for the sum of a client's examples), and rounding error grows as that falls;
    the constant balances the two. ``span`` 0 chooses one.
    """
    if design == "paper":
        return Strength(span=1.0, against=1.0, gain=1.0, contrast=1.0)
    if terms.sends == "gradient" or steps < 2:
        against = 10.0 if terms.sends == "gradient" or steps == 1 else 1 / (span or 1000.0)
        return Strength(span=span or 1000.0, against=against, gain=1e-4, contrast=1e-3)
    gain = 0.03
    contrast = 1e-6 * gain**2 * terms.batch_size**0.5 / terms.rate(round)
    return Strength(span=span or 10.0, against=2.5, gain=gain, contrast=contrast)


def ladder(classes: int, span: float, *, against: float = 2.5, rng: Rng) -> tuple[Tensor, Tensor]:
    """Deltas (K,), one negative, the others 1 to ``span`` in equal ratios; p (K,), with mean delta 0.

    Deltas are assigned to classes at random.

    Examples:
        >>> deltas, chances = ladder(4, 4.0, rng=Rng.root(0))
        >>> sorted(deltas.tolist()), round(abs(float((deltas * chances).sum())), 9)
        ([-10.0, 1.0, 2.0, 4.0], 0.0)
    """
    steps = torch.logspace(0, 1, classes - 1, base=span, dtype=torch.float64)
    steps = steps if classes > 2 else torch.ones(1, dtype=torch.float64)
    largest = against * float(steps[-1])
    alone = 1 / (1 + (classes - 1) * largest / float(steps.sum()))
    values = torch.cat((torch.tensor([-largest], dtype=torch.float64), steps))
    chances = torch.full((classes,), (1 - alone) / (classes - 1), dtype=torch.float64)
    chances[0] = alone
    order = torch.randperm(classes, generator=rng.torch())
    return values[order], chances[order]


def measure_of(latents: Tensor) -> Tensor:
    """The weights of u on the entries of a latent representation (N, D): (D,), float64.

    The mean over all entries, as published; the mean over every second entry if the former hardly varies, as
    behind a layer norm, whose entries sum to nearly zero.
    """
    entries = latents.shape[1]
    everything = torch.full((entries,), 1.0 / entries, dtype=torch.float64)
    half = everything.clone()
    half[::2] = 0
    half /= half.sum()
    spread = [float((latents.double() @ one).std()) for one in (everything, half)]
    return half if spread[1] > 10 * spread[0] else everything


def craft_head(
    tail: LinearTail,
    thresholds: Tensor,
    *,
    measure: Tensor | None = None,
    deviation: float,
    design: Design,
    strength: Strength,
    rng: Rng,
) -> Head:
    """Weights and biases of the tail's layers.

    Args:
        tail: of the model.
        thresholds: (R,) ascending, of u.
        deviation: of u on the auxiliary data.
        measure: (D,), the weights of u on the entries; None: the mean.
        design: of the last layer.
        strength: magnitudes; the paper's design uses only the gain.
        rng: shuffles the ladder, or draws the paper's last layer.
    """
    rows, classes = len(thresholds), tail.widths[-1]
    gain, contrast = strength.gain, strength.contrast
    tensors: dict[str, Tensor] = {}
    for name, inward, width in zip(tail.names, (tail.latent, *tail.widths[:-1]), tail.widths, strict=True):
        tensors[f"{name}.weight"] = torch.full((width, inward), 1.0 / inward)
        tensors[f"{name}.bias"] = torch.full((width,), 1.0 / width)
    first, last = tail.names[0], tail.names[-1]
    if measure is not None:
        tensors[f"{first}.weight"] = measure.float().expand(rows, -1).contiguous()
    tensors[f"{first}.weight"] *= gain
    tensors[f"{first}.bias"] = (-gain * thresholds).float()
    reach = rows * gain * deviation  # typical sum of all rows' outputs
    direct = len(tail.names) == 2  # else the layers between average over rows: a slope is divided by R
    fan, path = tail.widths[-2], 1.0 if direct else 1.0 / rows
    if design == "ladder":
        steps, chances = ladder(classes, strength.span, against=strength.against, rng=rng.child("ladder"))
        slopes = -steps * (contrast / (reach * float(steps.abs().max())))  # A_c, (K,)
        last_bias = chances.log().float()
        if not direct:
            quiet = math.sqrt(contrast / gain)  # where both layers change least in local steps
            middle = tail.names[-2]
            tensors[f"{middle}.weight"] *= quiet
            tensors[f"{middle}.bias"] = torch.full((fan,), quiet * gain * deviation)
            path *= quiet
        columns = (slopes / path / (1 if direct else fan)).float()[:, None].expand(classes, fan)
    else:
        random_weights = torch.rand(classes, 1 if direct else fan, generator=rng.child("weight").torch())
        slopes = random_weights.double().sum(1) * path
        last_bias = torch.rand(classes, generator=rng.child("bias").torch())
        columns = random_weights.expand(classes, fan)
    tensors[f"{last}.weight"], tensors[f"{last}.bias"] = columns.contiguous(), last_bias
    chance = (last_bias.double() + slopes * 0.4 * reach).softmax(0)
    return Head(tensors=tensors, levels=(chance * slopes).sum() - slopes)
