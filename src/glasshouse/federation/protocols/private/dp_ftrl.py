"""DP-FTRL: the server's noise is correlated over rounds, so that the noise of the model grows slowly.

Source: Kairouz et al. 2021, "Practical and Private (Deep) Learning Without Sampling or Shuffling",
arXiv:2103.00039, Algorithm 1 (without momentum); a matrix of noise is private for adaptively chosen updates
by Denisov et al. 2022, arXiv:2202.08312, Theorem 2.1. Where we differ: the model is the start plus the sum of
clipped updates, as in FedAvg; the guarantee is exact for Gaussian noise, where the paper has a Rényi bound.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, ClassVar, Final, final

import torch
from torch import Tensor

from glasshouse.federation.defenses.guarantee import Exposure, Guarantee, client_level
from glasshouse.federation.protocols.private.clip import clip_update
from glasshouse.federation.rounds import ParameterRounds
from glasshouse.federation.server_rules import ServerRule
from glasshouse.interfaces import Traits
from glasshouse.limits import Fix, Probability
from glasshouse.registry import Card
from glasshouse.rng import Rng
from glasshouse.settings import Count, Positive
from glasshouse.tensors import scale_tensors
from glasshouse.wire import Aggregate, Update

NAME: Final = "dp_ftrl"


@final
@dataclass(frozen=True, kw_only=True)
class DpFtrl(ParameterRounds):
    """FedAvg with server-side clipping and the noise of a binary tree over rounds.

    Args:
        clip: L2 norm to which each update is scaled down.
        noise_multiplier: standard deviation of the noise of one node of the tree ÷ the clip.
        delta: of the guarantee, in (0, 1).
        apart: rounds from one contribution of a client to the next one, at least; what it sends sooner is
            left out of the sum. 1: it may contribute to every round.
    """

    card: ClassVar[Card] = Card(
        summary="FedAvg whose server adds the noise of a tree over rounds, private against all but itself",
        source="Kairouz et al. 2021, arXiv:2103.00039",
        extra="dp",
    )
    traits: ClassVar[Traits] = Traits(sends="delta", allows=("delta",), like="fedavg", singly=True)
    clip: Positive = 1.0
    noise_multiplier: Positive = 1.0
    delta: Annotated[Probability, Fix("try 1e-5")] = 1e-5
    apart: Count = 1

    def server_rule(self) -> ServerRule:
        """Clipping and the tree's noise, then the mean."""
        return NoisyTree(how=self)

    def against_clients(self, rounds: int) -> Guarantee:
        """What other clients and bystanders, who see every model, can learn of all updates of one client.

        All noise is released once, to a client that contributes whenever it may.
        """
        return client_level(
            NAME,
            noise_multiplier=self.noise_multiplier / math.sqrt(contributions(rounds, self.apart)),
            clip=self.clip,
            delta=self.delta,
            exposure=Exposure(rounds=1),
        )


def contributions(rounds: int, apart: int) -> int:
    """Largest sum over the tree's nodes of the squared number of one client's contributions to the node.

    Its root is the L2 sensitivity of all noisy nodes together, in units of the clip. Only nodes that some
    model needs count: of ``2 ** level`` rounds, ending at an odd multiple of that. An upper bound, reached
    where a client contributes once or to every round.

    Args:
        rounds: of the federation, >= 1.
        apart: rounds from one contribution to the next, at least, >= 1.

    Examples:
        >>> contributions(8, apart=8)  # one path from a leaf to the root
        4
        >>> contributions(2, apart=1)  # one node of round 0, one of both rounds
        5
    """
    most, total = -(-rounds // apart), 0
    for level in range(rounds.bit_length()):
        nodes, each = (rounds // 2**level + 1) // 2, -(-(2**level) // apart)
        full = min(nodes, most // each)
        total += full * each**2 + (0 if full == nodes else (most - full * each) ** 2)
    return total


@final
@dataclass(kw_only=True)
class NoisyTree:
    """The server's side: clips on arrival, keeps the noise of the nodes that the present model is made of.

    Attributes:
        how: the settings.
    """

    how: DpFtrl
    _round: int = 0
    _last: dict[int, int] = field(default_factory=dict)
    _nodes: dict[int, dict[str, Tensor]] = field(default_factory=dict)

    def admit(self, update: Update) -> Update:
        """The update, clipped; zeros if its client contributed too short a time ago.

        Raises:
            Inapplicable: it carries running statistics, which no clip bounds.
        """
        clipped, _ = clip_update(update, self.how.clip, protocol=NAME)
        before = self._last.get(update.client)
        if before is not None and self._round - before < self.how.apart:
            return replace(clipped, tensors=scale_tensors(clipped.tensors, 0.0))
        self._last[update.client] = self._round
        return clipped

    def release(self, total: Aggregate, *, rng: Rng) -> Aggregate:
        """The sum with what the tree's noise changes by in this round; its weight is the size of the cohort.

        After round t the noise is that of the nodes that make up t in binary: those smaller than the node
        that is complete now are replaced by it.
        """
        self._round += 1
        complete = self._round & -self._round
        gone = [self._nodes.pop(size) for size in list(self._nodes) if size < complete]
        std = self.how.noise_multiplier * self.how.clip
        new = {
            name: std * torch.randn(t.shape, generator=rng.child(name).torch(), dtype=t.dtype)
            for name, t in total.tensors.items()
        }
        self._nodes[complete] = new
        tensors = {n: t + new[n] - sum(node[n] for node in gone) for n, t in total.tensors.items()}
        return replace(total, tensors=tensors, weight=float(len(total.selected)))

    def step(self, change: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """The mean change itself."""
        return change
