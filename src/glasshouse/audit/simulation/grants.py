"""Build the side knowledge that the scenario grants: the only place where it is derived from ground truth."""

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from glasshouse.audit.simulation.build import Built
from glasshouse.transcript.grants import Cohort, Grants
from glasshouse.transcript.record import Transcript
from glasshouse.truth.record import Used
from glasshouse.wire import Batch, Broadcast

EVERYBODY = -1


def collect_grants(built: Built, transcript: Transcript, used: Mapping[tuple[int, int], Used]) -> Grants:
    """The grants of ``[grants]``, for the recorded rounds. Labels are sorted: their order is not granted."""
    promises = built.grants
    return Grants(
        auxiliary=built.auxiliary if promises.auxiliary else None,
        labels=_labels(built.setting.private, used) if promises.labels else {},
        batch_norm=_statistics(built, transcript, used) if promises.batch_norm else {},
        defense=tuple(d.describe() for d in built.setting.defenses) if promises.defense else None,
        challenge=built.challenge if promises.challenge else None,
        cohorts=_cohorts(transcript) if promises.cohorts else {},
    )


def _cohorts(transcript: Transcript) -> dict[int, Cohort]:
    """Cohorts from messages only: as announced with a secure sum, else the clients with recorded updates."""
    cohorts = {}
    for record in transcript.rounds:
        total, updates = record.aggregate, record.updates
        if total is not None:
            cohorts[record.round] = Cohort(
                selected=total.selected, dropped=total.dropped, examples=total.examples, steps=total.steps
            )
        elif updates:
            cohorts[record.round] = Cohort(
                selected=tuple(u.client for u in updates),
                examples=sum(u.examples for u in updates),
                steps=max(u.steps for u in updates),
            )
    return cohorts


def _labels(private: Batch, used: Mapping[tuple[int, int], Used]) -> dict[tuple[int, int], Tensor]:
    rows: dict[tuple[int, int], list[int]] = {}
    for (number, client), one in used.items():
        rows[number, client] = one.rows()
        rows.setdefault((number, EVERYBODY), []).extend(one.rows())
    return {key: in_order(private.labels[torch.tensor(r)]) for key, r in rows.items()}


def in_order(labels: Tensor) -> Tensor:
    """Targets (B, ...) in ascending order, so that their order says nothing about that of the examples.

    Examples:
        >>> in_order(torch.tensor([[1, 0], [0, 1]])).tolist()
        [[0, 1], [1, 0]]
    """
    if labels.ndim == 1:
        return labels.sort().values
    places = sorted(range(len(labels)), key=lambda i: labels[i].flatten().tolist())
    return labels[torch.tensor(places)]


def _statistics(
    built: Built, transcript: Transcript, used: Mapping[tuple[int, int], Used]
) -> dict[tuple[int, int], dict[str, Tensor]]:
    """Mean and biased variance of each batch-norm layer's input over the private batch."""
    statistics = {}
    for record in transcript.rounds:
        broadcasts = {b.client: b for b in record.broadcasts}
        for (number, client), one in used.items():
            broadcast = broadcasts.get(client, broadcasts.get(None))
            if number == record.round and broadcast is not None:
                batch = built.setting.private.pick(torch.tensor(one.rows()))
                statistics[number, client] = _layers(built, broadcast, batch)
    return statistics


def _layers(built: Built, broadcast: Broadcast, batch: Batch) -> dict[str, Tensor]:
    model = built.setting.build(broadcast.architecture)
    model.load_state_dict({n: t for n, t in broadcast.tensors.items() if n in model.state_dict()})
    statistics: dict[str, Tensor] = {}
    for name, module in model.eval().named_modules():
        if isinstance(module, nn.BatchNorm2d):

            def note(_: nn.Module, inputs: tuple[Tensor, ...], name: str = name) -> None:
                x = inputs[0].detach()
                statistics[f"{name}.mean"] = x.mean((0, 2, 3))
                statistics[f"{name}.var"] = x.var((0, 2, 3), unbiased=False)

            module.register_forward_pre_hook(note)
    with torch.no_grad():
        model(batch.inputs)
    return statistics
