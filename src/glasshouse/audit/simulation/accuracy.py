"""Held-out accuracy over the rounds of a federation: measured while it runs, shown in the report."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, final

from torch import Tensor

from glasshouse.audit.simulation.record import GroupRecord
from glasshouse.federation.setting import Setting
from glasshouse.models.fit import predict
from glasshouse.results.records import Exhibit
from glasshouse.scenario.axes import Cell
from glasshouse.wire import Batch, Broadcast

POINTS: Final = 12
"""Rounds at most in which the accuracy of the global model is measured, beside the end."""


@final
@dataclass(kw_only=True, eq=False)
class Accuracies:
    """Measures what is broadcast to everybody, in evenly spaced rounds.

    Args:
        setting: of the federation. heldout: what accuracy is measured on. rounds: that will be played.
        points: (round, share) so far; none of a model of another architecture than the agreed one.
    """

    setting: Setting
    heldout: Batch
    rounds: int
    points: list[tuple[int, float]] = field(default_factory=list)
    _known: dict[str, Tensor] = field(default_factory=dict)

    def sent(self, broadcast: Broadcast) -> None:
        """Look at one broadcast; tensors that it leaves out are those of the one before."""
        agreed = self.setting.terms.architecture
        if broadcast.client is not None or broadcast.architecture != agreed:
            return
        self._known |= broadcast.tensors
        if broadcast.round % -(-self.rounds // POINTS):
            return
        model = self.setting.build(agreed)
        model.load_state_dict({**self.setting.start, **self._known})
        right = predict(model, self.heldout.inputs).argmax(1) == self.heldout.labels
        self.points.append((broadcast.round, float(right.double().mean())))


def accuracy_exhibits(cell: Cell, records: Sequence[GroupRecord]) -> Iterator[Exhibit]:
    """Accuracy of the global model against rounds, honest and under each active attack; first seeds.

    Args:
        records: of the cell's groups. Nothing is shown of federations of one round.
    """
    series: dict[str, dict[str, Any]] = {}
    for record in records:
        if len(record.curve) < 2 or record.utility is None:
            continue
        attack = None if record.active is None else cell.scenario.attacks[record.active]
        name = "global model" if attack is None else f"under {attack.label or attack.name}"
        points = [*record.curve, (record.rounds, record.utility["value"])]
        series.setdefault(name, {"name": name, "x": [r for r, _ in points], "y": [a for _, a in points]})
    if series:
        where = ", ".join(f"{name.split('.')[-1]} = {value}" for name, value in cell.axes.items())
        yield Exhibit(
            kind="lines",
            scenario=cell.scenario.name,
            title="Accuracy of the global model" + (f" ({where})" if where else ""),
            caption="On held-out data, of what clients were sent in each round and of the model at the end; "
            "first seed. Under an attack the server sends another model in the rounds that it attacks.",
            data={"x_label": "rounds played", "y_label": "accuracy", "series": list(series.values())},
        )
