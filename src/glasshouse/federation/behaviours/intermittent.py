"""Misbehave only in some rounds, to be harder to detect.

Source: Kerkouche et al. 2023, arXiv:2303.03908, discussion (a client that poisons selectively is
harder to detect, and poisons less).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, ClassVar, final

import torch
from annotated_types import Ge, Le

from glasshouse import registry
from glasshouse.errors import BadValue
from glasshouse.interfaces import Behaviour, Trainer
from glasshouse.limits import Fix, check_ranges
from glasshouse.registry import Card
from glasshouse.rng import Rng
from glasshouse.wire import Value


@final
@dataclass(frozen=True, kw_only=True)
class Intermittent:
    """The named behaviour with the given probability in each round; else honest training.

    Args:
        probability: of misbehaving in a round in which the client takes part, in [0, 1].
        behaviour: name of a registered behaviour.
        arguments: its settings.
    """

    card: ClassVar[Card] = Card(
        summary="another behaviour, in some rounds only", source="Kerkouche et al. 2023, arXiv:2303.03908"
    )

    probability: Annotated[float, Ge(0), Le(1), Fix("try 0.5")]
    behaviour: str = "gradient_ascent"
    arguments: Mapping[str, Value] = field(default_factory=dict)
    _other: Behaviour = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        subject = "behaviour 'intermittent'"
        check_ranges(self, subject)
        if self.behaviour == "intermittent":
            needs, got = "another behaviour to switch on and off", "behaviour = intermittent"
            raise BadValue(subject, needs=needs, got=got, fix="try gradient_ascent")
        other = registry.create(registry.load("behaviours", self.behaviour), self.arguments)
        object.__setattr__(self, "_other", other)  # frozen: this is still construction

    def deviate(self, train: Trainer, *, round: int, rng: Rng) -> Trainer:
        """``train`` itself in an honest round."""
        draw = torch.rand((), generator=rng.child(f"intermittent/{round}").torch(), dtype=torch.float64)
        if float(draw) >= self.probability:
            return train
        return self._other.deviate(train, round=round, rng=rng)
