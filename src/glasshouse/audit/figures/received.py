"""What clients received, as exhibits: the public features, how a head was made, what a guard sees."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from glasshouse.attacks.base import Appendix
from glasshouse.attacks.transfer.maui.head import JUDGED
from glasshouse.audit.attacking.claims import Outcome
from glasshouse.audit.simulation.record import GroupRecord
from glasshouse.guard.inspect import Seen, inspect
from glasshouse.metrics.utility import accuracy_interval
from glasshouse.models.build import build, state
from glasshouse.results.records import Exhibit
from glasshouse.scenario.axes import Cell
from glasshouse.transcript.files import read_transcript
from glasshouse.wire import Architecture


def received_exhibits(
    cell: Cell,
    attacks: Mapping[str, Mapping[str, Sequence[Outcome]]],
    records: Sequence[GroupRecord],
    folders: Mapping[str, str],
) -> list[Exhibit]:
    """All of them, as far as there is something to show.

    Args:
        cell: whose. attacks: outcomes by the attack's label and the group's folder.
        records: of each group. folders: of the first group of each active attack, by label.
    """
    where = ", ".join(f"{name.split('.')[-1]} = {value}" for name, value in cell.axes.items())
    suffix = f" ({where})" if where else ""
    made = [*_accuracies(cell, records, suffix)]
    for label, every in attacks.items():
        reports = [
            c
            for o in every.values()
            for one in o
            for c in one.claims
            if isinstance(c, Appendix) and c.name == "head"
        ]
        made += [_curve(cell, label, reports[0], suffix)] if reports else []
    return made + list(_guarded(cell, folders, suffix))


def _accuracies(cell: Cell, records: Sequence[GroupRecord], suffix: str) -> Iterator[Exhibit]:
    rows: list[list[object]] = []
    found = records[0].facts.pretrained if records else None
    if found:
        rows.append(["public model, natural images", *_interval(found["natural"], int(found["n"]))])
        rows.append(
            ["public model, PGD-10 within 4/255", *_interval(found["robust"], int(found["n_robust"]))]
        )
    for record in records:
        if record.sent is not None and record.active is not None:
            name = cell.scenario.attacks[record.active].label or cell.scenario.attacks[record.active].name
            rows.append([f"as sent by {name}", *_interval(record.sent["value"], int(record.sent["n"]))])
    if rows:
        columns = ["model", "accuracy", "low", "high", "n"]
        yield Exhibit(
            kind="table",
            scenario=cell.scenario.name,
            title=f"Accuracy of what clients received{suffix}",
            caption="On held-out data, 95 % intervals. A client that tests the model sees these numbers too.",
            data={"columns": columns, "rows": rows},
        )


def _interval(share: float, n: int) -> list[float]:
    found = accuracy_interval(round(share * n), n)
    return [found.value, found.low, found.high, n]


def _curve(cell: Cell, label: str, report: Appendix, suffix: str) -> Exhibit:
    leakage, accuracy, best = (
        report.tensors["leakage"],
        report.tensors["accuracy"],
        int(report.numbers["best"]),
    )
    epochs = len(leakage) - 1
    x = [*range(1, epochs + 1)]
    last = f"as sent: leakage {float(leakage[-1]):.2f}, accuracy {float(accuracy[-1]):.2f}"
    kept = f"kept: epoch {best + 1}; " if best >= 0 else "not trained; "
    both = (("leakage", leakage.tolist()), ("accuracy", accuracy.tolist()))
    trained = [{"name": f"{name}, epochs", "x": x, "y": y[:-1]} for name, y in both if x]
    sent = [{"name": f"{name}, as sent", "x": [epochs + 1], "y": y[-1:]} for name, y in both]
    return Exhibit(
        kind="lines",
        scenario=cell.scenario.name,
        title=f"Making of the head: {label}{suffix}",
        caption=f"On the adversary's own held-out images; {kept}{last}. Epochs are compared on batches of "
        f"{JUDGED} (or all of these images, if fewer), the head as sent is measured on as many examples as "
        "it was made for: the two leakages are not of one batch size.",
        data={"x_label": "epoch", "y_label": "share", "series": [*trained, *sent]},
    )


def _guarded(cell: Cell, folders: Mapping[str, str], suffix: str) -> Iterator[Exhibit]:
    """What the guard says of what an active server sent in the attacked rounds, beside a random model."""
    attacked = {r % cell.scenario.federation.rounds for r in cell.scenario.audit.rounds}
    seen: dict[str, Seen] = {}
    for label, folder in folders.items():
        transcript = read_transcript(Path(folder) / "transcript", trust_factory=True)
        agreed = state(build(transcript.terms.architecture))
        if not seen:
            seen["random weights"] = inspect(agreed, agreed=agreed)
        sent = [b for r in transcript.rounds if r.round in attacked for b in r.broadcasts]
        if sent:
            crafted = max(sent, key=lambda b: _other(b.architecture, transcript.terms.architecture))
            seen[f"as sent by {label}"] = inspect(crafted.tensors, agreed=agreed)
    if not seen:
        return
    series = [{"name": name, "values": one.entropies.tolist()} for name, one in seen.items()]
    yield Exhibit(
        kind="boxes",
        scenario=cell.scenario.name,
        title=f"Entropy of the weight vectors received{suffix}",
        caption="What 'glasshouse guard' computes: below 0.5 is a finding; in the honest models of Maui's "
        "authors no entropy is below 0.88.",
        data={
            "y_label": "normalised entropy (bins of 1e-6)",
            "series": [one for one in series if one["values"]],
        },
    )
    rows = [
        [
            name,
            one.inspection.values.get("minimum"),
            one.inspection.values.get("percentile_3"),
            len(one.inspection.findings),
            one.inspection.findings[0] if one.inspection.findings else "",
        ]
        for name, one in seen.items()
    ]
    yield Exhibit(
        kind="table",
        scenario=cell.scenario.name,
        title=f"What a guard finds{suffix}",
        caption="A client that inspects the model before it trains.",
        data={"columns": ["model", "minimum", "3rd percentile", "findings", "the first"], "rows": rows},
    )


def _other(one: Architecture, agreed: Architecture) -> bool:
    return one != agreed
