"""Held-out accuracy over the rounds of a federation, measured while it runs."""

from dataclasses import dataclass, field
from typing import Final, final

from torch import Tensor

from glasshouse.federation.setting import Setting
from glasshouse.models.fit import share_right
from glasshouse.wire import Batch, Broadcast

POINTS: Final = 12
"""Largest number of rounds in which the accuracy of the global model is measured, besides the end."""


@final
@dataclass(kw_only=True, eq=False)
class Accuracies:
    """Measures the accuracy of models broadcast to all clients, in evenly spaced rounds.

    Args:
        setting: of the federation.
        heldout: the examples that accuracy is measured on.
        rounds: number of rounds of the federation.
        points: (round, accuracy) so far; models of another architecture than the agreed one are skipped.
    """

    setting: Setting
    heldout: Batch
    rounds: int
    points: list[tuple[int, float]] = field(default_factory=list)
    _known: dict[str, Tensor] = field(default_factory=dict)

    def sent(self, broadcast: Broadcast) -> None:
        """Measure one broadcast; tensors missing from it keep their previous values."""
        agreed = self.setting.terms.architecture
        if broadcast.client is not None or broadcast.architecture != agreed:
            return
        self._known |= broadcast.tensors
        if broadcast.round % -(-self.rounds // POINTS):
            return
        model = self.setting.build(agreed)
        model.load_state_dict({**self.setting.start, **self._known})
        self.points.append((broadcast.round, float(share_right(model, self.heldout).mean())))
