"""Leakage of a head with known inputs: measured on the adversary's own data, to select a head.

Source: Dabholkar et al. 2025 (Maui), section 5.2.1: the share of a batch that is alone in some column of dZ.

Shape letters: B examples, D features, N units, K classes.
"""

from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor, nn
from torch.nn import functional

from glasshouse.rng import Rng

DRAWS = 8
_NOTHING = 1e-12


@final
class Spab(nn.Module):
    """The head: features (B, D) → ``hidden`` → ReLU → ``out`` → logits (B, K)."""

    def __init__(self, features: int, units: int, classes: int) -> None:
        super().__init__()
        self.hidden = nn.Linear(features, units)
        self.out = nn.Linear(units, classes)

    def forward(self, y: Tensor) -> Tensor:
        """Logits."""
        logits: Tensor = self.out(torch.relu(self.hidden(y)))
        return logits


def gradient_of_units(head: Spab, features: Tensor, labels: Tensor) -> Tensor:
    """DZ (B, N) of the mean cross-entropy, float64."""
    with torch.no_grad():
        z = head.hidden(features).double()
        logits = functional.linear(z.clamp_min(0), head.out.weight.double(), head.out.bias.double())
        wrong = (logits.softmax(1) - functional.one_hot(labels, logits.shape[1])) / len(labels)
        slope: Tensor = (wrong @ head.out.weight.double()) * (z > 0)
        return slope


def alone(dz: Tensor) -> Tensor:
    """(B,) bool: the examples that are the only one to activate some unit; dZ (B, N).

    Examples:
        >>> alone(torch.tensor([[1.0, 0.0, 2.0], [0.0, 0.0, 1.0]])).tolist()
        [True, False]
    """
    reached = dz.abs() > _NOTHING * float(dz.abs().max())
    single = reached.sum(0) == 1
    return (reached & single).any(1)


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Sample:
    """Features (n, D) of the adversary's images, with their labels (n,)."""

    features: Tensor
    labels: Tensor

    def __len__(self) -> int:
        return len(self.labels)

    def pick(self, index: Tensor) -> "Sample":
        """The examples at ``index``."""
        return Sample(features=self.features[index], labels=self.labels[index])

    def draw(self, batch: int, *, rng: Rng) -> list["Sample"]:
        """``DRAWS`` random batches; a batch is at most the whole sample."""
        orders = [torch.randperm(len(self), generator=rng.child(str(i)).torch()) for i in range(DRAWS)]
        return [self.pick(order[:batch]) for order in orders]


def leakage(head: Spab, sample: Sample, *, batch: int, rng: Rng) -> float:
    """Mean share of a batch that leaks, over some batches."""
    slopes = [gradient_of_units(head, one.features, one.labels) for one in sample.draw(batch, rng=rng)]
    return sum(float(alone(dz).double().mean()) for dz in slopes) / len(slopes)


def accuracy(head: Spab, sample: Sample) -> float:
    """Share of the sample that the head classifies correctly, in [0, 1]."""
    with torch.no_grad():
        return float((head(sample.features).argmax(1) == sample.labels).double().mean())
