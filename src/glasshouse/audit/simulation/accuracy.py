"""Held-out accuracy over the rounds of a federation, measured while it runs."""

from dataclasses import dataclass, field
from typing import Final, final

from torch import Tensor

from glasshouse.federation.setting import Setting
from glasshouse.models.fit import share_right
from glasshouse.wire import Batch, Broadcast

POINTS: Final = 12
"""Rounds at most in which the accuracy of the global model is measured, beside the end."""


@final
@dataclass(kw_only=True, eq=False)
class Accuracies:
    """Measures what is broadcast to everybody, in evenly spaced rounds.

    Args:
        setting: of the federation.
        heldout: what accuracy is measured on.
        rounds: that will be played.
        points: (round, share) so far; none of a model of another architecture than the agreed one.
    """

    setting: Setting
    heldout: Batch
    rounds: int
    points: list[tuple[int, float]] = field(default_factory=list)
    _known: dict[str, Tensor] = field(default_factory=dict)

    def sent(self, broadcast: Broadcast) -> None:
        """Measure one broadcast; tensors that it omits are those of the previous one."""
        agreed = self.setting.terms.architecture
        if broadcast.client is not None or broadcast.architecture != agreed:
            return
        self._known |= broadcast.tensors
        if broadcast.round % -(-self.rounds // POINTS):
            return
        model = self.setting.build(agreed)
        model.load_state_dict({**self.setting.start, **self._known})
        self.points.append((broadcast.round, float(share_right(model, self.heldout).mean())))
