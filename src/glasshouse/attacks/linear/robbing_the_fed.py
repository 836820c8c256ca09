"""Robbing the Fed: an imprint module in front of the model makes single images readable from the sum.

Source: Fowl et al. 2022, "Robbing the Fed", ICLR, arXiv:2110.13057, Sections 3 and 4.2 (sparse variant). The
measurement is the mean of the pixels; thresholds are quantiles of a Normal fitted to auxiliary data. Where we
differ: the read-out is blind and in float64, and takes a bin's scale from its known brightness when clients
send parameters. The layer that maps back to images has identical columns: one image, scaled by the sum of the
rows.

Breaks when: a client inspects the architecture it is asked to run; noise exceeds one example's share of the
update. Several local steps shift the thresholds, less so in the sparse variant. Images are not attributed to
clients. Shape letters: B images, C, H, W, R bins.
"""

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal, final

import torch
from annotated_types import Ge, Le
from torch import Tensor

from glasshouse.attacks.base import Claim, Needs
from glasshouse.attacks.parts.readout import summed
from glasshouse.attacks.parts.readout.linear_leakage import normal_thresholds, read_rows, read_single_rows
from glasshouse.attacks.parts.replica import complete_broadcast
from glasshouse.errors import Inapplicable
from glasshouse.limits import check_ranges
from glasshouse.registry import Card, Offer
from glasshouse.rng import Rng
from glasshouse.transcript.view import RoundView, View
from glasshouse.wire import Architecture, Broadcast, Crafted, Value

PREFIX = "features.imprint"
"""Prefix of the module in the ``state_dict`` of ``glasshouse.models.imprint``."""
EMPTY_BIN = 1e-5
"""A bin below this share of the strongest one counts as empty: about the rounding of a float32 sum."""


class Imprinting(ABC):
    """An attack that puts a module of linear layers in front of the model; ``name`` is registered.

    ``module``: name of the architecture with the module in front.
    """

    name: ClassVar[str]
    module: ClassVar[str]
    budget: ClassVar[None] = None

    def __post_init__(self) -> None:
        check_ranges(self, f"attack '{self.name}'")

    def check_model(self, architecture: Architecture) -> None:
        """Refuse models that are not registered."""
        self.in_front(architecture, {})

    def run(self, view: View, *, rng: Rng) -> tuple[Claim, ...]:
        """The images of every round in which the module was in front."""
        del rng  # deterministic
        rounds = [one for one in view.rounds if one.broadcast.architecture.name == self.module]
        return tuple(self.read(one, view) for one in rounds)

    @abstractmethod
    def read(self, one: RoundView, view: View) -> Claim:
        """The images of one of these rounds."""

    def in_front(self, agreed: Architecture, arguments: Mapping[str, Value]) -> Architecture:
        """The architecture with the module around ``agreed``.

        Raises:
            Inapplicable: the agreed model is not registered (a user's own ``module:factory``).
        """
        if ":" in agreed.name:
            raise Inapplicable(
                f"attack '{self.name}'",
                needs="a registered model to put a module in front of",
                got=f"'{agreed.name}'",
                fix="register it as an entry point of glasshouse.models",
            )
        inner = json.dumps(dict(agreed.arguments), sort_keys=True)
        return Architecture(
            name=self.module,
            inputs=agreed.inputs,
            task=agreed.task,
            arguments={"inner": agreed.name, "inner_arguments": inner, **arguments},
        )

    def imprint(
        self, view: View, bins: int, arguments: Mapping[str, Value], *, sparse: bool = False, rng: Rng
    ) -> tuple[Architecture, dict[str, Tensor], dict[str, Tensor]]:
        """Architecture, tensors and memory of the honest model behind a module with ``bins`` rows."""
        auxiliary = view.grants.auxiliary
        assert auxiliary is not None  # needs.grants
        architecture = self.in_front(view.terms.architecture, arguments)
        brightness = auxiliary.inputs.flatten(1).mean(1)
        thresholds = normal_thresholds(brightness, bins)
        rows = imprint_tensors(thresholds, auxiliary.inputs[0].numel(), sparse=sparse, rng=rng)
        memory = {"thresholds": thresholds, "brightness": brightness}  # brightness: only for the figure
        return architecture, {**agreed_state(view), **rows}, memory


@final
@dataclass(frozen=True, kw_only=True)
class RobbingTheFed(Imprinting):
    """The attack and its settings.

    Args:
        bins: R, rows of the module.
        variant: ``linear`` (ReLU, differences of rows) or ``sparse`` (a ramp per bin).
    """

    card: ClassVar[Card] = Card(
        title="Robbing the Fed",
        summary="a module of linear layers in front of the model copies single images into the sum",
        source="Fowl et al. 2022, arXiv:2110.13057",
        claims=("reconstruction",),
        threat="malicious server: changes the architecture, sees only the sum",
        grants=("auxiliary",),
        details={
            "attribution": "none: it cannot say whose image it is",
            "structure": "changed: a client can see it",
        },
        control=summed.crafting_control("architecture", "parameters"),
        offers=(Offer(strength=0.8, seconds=1),),
    )

    needs: ClassVar[Needs] = summed.crafting_needs("architecture", modalities=frozenset())
    name: ClassVar[str] = "robbing_the_fed"
    module: ClassVar[str] = "imprint"

    bins: Annotated[int, Ge(2), Le(2**31 - 1)] = 1024
    variant: Literal["linear", "sparse"] = "linear"

    def craft(self, view: View, *, rng: Rng) -> Crafted | None:
        """The honest model behind an imprint module."""
        settings, sparse = {"bins": self.bins, "variant": self.variant}, self.variant == "sparse"
        architecture, tensors, memory = self.imprint(view, self.bins, settings, sparse=sparse, rng=rng)
        number = view.rounds[-1].round
        return Crafted(
            default=Broadcast(round=number, architecture=architecture, tensors=tensors), memory=memory
        )

    def read(self, one: RoundView, view: View) -> Claim:
        names = (f"{PREFIX}.measure.weight", f"{PREFIX}.measure.bias")
        total = summed.sum_of_round(one, terms=view.terms, names=names, subject=f"attack '{self.name}'")
        weight, bias = (total.gradient[name] for name in names)
        rows, most = (weight, bias, view.memory["thresholds"]), total.examples
        if self.variant == "sparse":
            leak = read_single_rows(*rows, faint=EMPTY_BIN, limit=most)
        else:
            floor = EMPTY_BIN * float(bias.diff().abs().max())
            mean = weight.new_full((weight.shape[1],), 1 / weight.shape[1])
            measure = mean if view.terms.sends != "gradient" else None
            leak = read_rows(*rows, floor=floor, limit=most, measure=measure)
        return summed.claim_of_round(one, leak.inputs, terms=view.terms, confidence=leak.signal.abs())


def imprint_tensors(thresholds: Tensor, entries: int, *, sparse: bool, rng: Rng) -> dict[str, Tensor]:
    """Weights of the module: R rows that measure the mean, and R identical columns that map back.

    The image in the columns is random, so that the loss gradient is not orthogonal to it for whole classes;
    the outputs of all rows sum to values of the order of a pixel.
    """
    rows = len(thresholds)
    slopes = torch.ones(rows, dtype=torch.float64)
    if sparse:
        widths = thresholds.diff()
        slopes = 1 / torch.cat((widths, widths[-1:]))
    weight = (slopes / entries)[:, None].expand(rows, entries)
    pattern = torch.randn(entries, generator=rng.child("pattern").torch())
    return {
        f"{PREFIX}.measure.weight": weight.float().contiguous(),
        f"{PREFIX}.measure.bias": (-slopes * thresholds).float(),
        f"{PREFIX}.back.weight": (pattern / rows)[:, None].expand(entries, rows).contiguous(),
        f"{PREFIX}.back.bias": torch.full((entries,), 0.5),
    }


def agreed_state(view: View) -> dict[str, Tensor]:
    """The honest model as last broadcast, with the names that its tensors have behind the module."""
    return {
        name.replace("features.", "features.inner.", 1) if name.startswith("features.") else name: t
        for name, t in complete_broadcast(view).items()
    }
