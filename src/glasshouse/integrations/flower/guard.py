"""Guards in a Flower client: refuse a crafted model before training, and a leaking update before it is sent.

A refusal goes to the server as an error with the kind of reason and no number (numbers would tell an attacker
how to pass); what was found stands in the client's own report, a line of JSON for each message, and the run
goes on without this client's update. Mods lie in the app that is run: a platform that wants them whatever the
app wraps it by :func:`guarded`.
"""

import copy
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final, final

import torch
from flwr.app import Context, Error, Message
from flwr.clientapp import ClientApp
from torch import Tensor, nn

from glasshouse.errors import BadValue
from glasshouse.guard.behaviour.inspect import (
    HonestLayer,
    HonestRange,
    LayerBehaviour,
    inspect_behaviour,
    learn_honest_range,
)
from glasshouse.guard.inspect import inspect
from glasshouse.guard.mitigate import mitigate
from glasshouse.guard.preflight import preflight
from glasshouse.integrations.flower.records import (
    arrays_of,
    is_secure,
    put_tensors,
    round_of,
    stage_of,
    tensors_of,
)
from glasshouse.integrations.flower.secure_terms import (
    broken_term,
    hide_counts,
    hide_what_travels_in_clear,
    is_in_sum,
    remember_keys,
)
from glasshouse.integrations.flower.truth import watching
from glasshouse.models import build as models
from glasshouse.store import append_jsonl, read_json, write_json
from glasshouse.tensors import difference
from glasshouse.wire import Architecture

__all__ = ["REFUSED", "guard_mod", "guarded", "preflight_mod"]

REFUSED: Final = 6
"""Flower's code for a mod whose precondition does not hold."""
BATCH: Final = 64
"""Examples of the client's own on which a received model is tried."""

Next = Callable[[Message, Context], Message]
Mod = Callable[[Message, Context, Next], Message]
Data = Callable[[Context], tuple[Tensor, Tensor]]
"""Gives a node its own examples: as they enter the network, and their classes."""


def guard_mod(
    model: nn.Module | Architecture, *, data: Data | None = None, reports: str | Path = "guard"
) -> Mod:
    """A client mod, the first of all, that refuses crafted models and terms of SecAgg+ that hide nobody.

    Metrics and counts of examples that travel in clear beside a secure sum are taken out of the reply, and
    the counts from those of evaluations, too.

    Args:
        model: the network that was agreed on; its weights are not used.
        data: the node's own examples. With them a model is also judged by what it does to 64 of them,
            against honest models of its architecture, which the client trains for that once, for some steps;
            without, by its tensors alone, and crafted models that look ordinary pass.
        reports: folder of the clients' reports.
    """
    return _Guard(network=_network(model), data=data, reports=Path(reports).expanduser())


def preflight_mod(
    model: nn.Module | Architecture,
    *,
    data: Data | None = None,
    reports: str | Path = "guard",
    most: int = 0,
    mitigated: bool = False,
) -> Mod:
    """A client mod that refuses to send an update in which examples of the client stand.

    It goes after ``secaggplus_mod``, if that is there: a masked update cannot be checked.

    Args:
        model: the network that is trained.
        data: the node's own examples; None: those that were seen to be trained on, as by ``truth_mod``.
        reports: folder of the clients' reports.
        most: examples whose input or features may stand in an update that is sent.
        mitigated: where more stand, send it without the rows that show them, or with noise on these, if that
            hides them all and leaves half of the update (:func:`glasshouse.guard.mitigate.mitigate`).
    """
    return _Preflight(
        network=_network(model),
        data=data,
        reports=Path(reports).expanduser(),
        most=most,
        mitigated=mitigated,
    )


def guarded(
    app: ClientApp,
    model: nn.Module | Architecture,
    *,
    data: Data | None = None,
    reports: str | Path = "guard",
    most: int = 0,
) -> ClientApp:
    """``app`` behind :func:`guard_mod` and :func:`preflight_mod`, out of reach of the app itself.

    From here an update under SecAgg+ is already masked: its terms are checked, the update is not, and the
    report says so.

    Args:
        app: of the researcher.
        model: the network that was agreed on.
        data: the node's own examples.
        reports: folder of the clients' reports.
        most: as in :func:`preflight_mod`.
    """
    mods = (
        guard_mod(model, data=data, reports=reports),
        preflight_mod(model, data=data, reports=reports, most=most),
    )
    return _GuardedApp(app, mods)


@final
class _GuardedApp(ClientApp):
    """A ``ClientApp`` inside of mods that it does not know of."""

    def __init__(self, app: ClientApp, mods: tuple[Mod, Mod]) -> None:
        super().__init__()
        self._app = app
        self._first, self._second = mods

    def __call__(self, message: Message, context: Context) -> Message:
        """Run the app between the mods."""

        def inner(message: Message, context: Context) -> Message:
            return self._second(message, context, self._app)

        return self._first(message, context, inner)


@final
@dataclass(kw_only=True)
class _Guard:
    """What :func:`guard_mod` makes."""

    network: nn.Module
    data: Data | None
    reports: Path
    _honest: dict[int, HonestRange] = field(default_factory=dict)

    def __call__(self, message: Message, context: Context, call_next: Next) -> Message:
        """Check what came, pass it on, and hide what the reply says in clear."""
        report = _Report(self.reports, message, context)
        if stage_of(message) != "train" or not message.has_content():
            reply = call_next(message, context)
            if is_in_sum(context) and reply.has_content():  # would say how many examples are in the sum
                report.add("hidden", hide_counts(reply))
            return reply
        secure = is_secure(message)
        if secure and (term := broken_term(message, context)):
            return report.refuse("these terms of secure aggregation may show a single update", [term])
        findings = self._findings(message, context)
        if findings:
            return report.refuse("a model that clients do not train on", findings)
        reply = call_next(message, context)
        if secure and reply.has_content():
            remember_keys(reply, context)
            report.add("hidden", hide_what_travels_in_clear(reply))
        return reply

    def _findings(self, message: Message, context: Context) -> list[str]:
        arrays = arrays_of(message.content)
        if arrays is None:
            return []
        try:
            tensors = models.name_tensors(tensors_of(arrays), self.network)
            findings = list(inspect(tensors, agreed=self.network.state_dict()).inspection.findings)
            if findings or self.data is None:
                return findings
            inputs, labels = self.data(context)
            received = _loaded(self.network, tensors)
            honest = self._range(context.node_id, received, inputs, labels)
            batch = inputs[:BATCH], labels[:BATCH]
            return list(inspect_behaviour(received, *batch, honest=honest).findings)
        except BadValue as error:
            return [str(error)]

    def _range(self, node: int, model: nn.Module, inputs: Tensor, labels: Tensor) -> HonestRange:
        """What honest models do with this node's examples; learnt once, and kept beside the reports."""
        file = self.reports / f"{node}.honest.json"
        if node not in self._honest and file.exists():
            self._honest[node] = {
                name: HonestLayer(**{**stored, "most": LayerBehaviour(**stored["most"])})
                for name, stored in read_json(file).items()
            }
        if node not in self._honest:
            learnt = learn_honest_range(model, inputs, labels, batch=min(BATCH, len(inputs)))
            write_json(file, {name: asdict(one) for name, one in learnt.items()})
            self._honest[node] = learnt
        return self._honest[node]


@final
@dataclass(kw_only=True)
class _Preflight:
    """What :func:`preflight_mod` makes."""

    network: nn.Module
    data: Data | None
    reports: Path
    most: int
    mitigated: bool

    def __call__(self, message: Message, context: Context, call_next: Next) -> Message:
        """Train, then look at what would be sent."""
        arrays = arrays_of(message.content) if message.has_content() else None
        if stage_of(message) != "train" or arrays is None:
            return call_next(message, context)
        with watching() as steps:
            reply = call_next(message, context)
        report = _Report(self.reports, message, context)
        sent = arrays_of(reply.content) if reply.has_content() else None
        if sent is None:
            report.add("not checked: nothing is sent, or only what is masked", [])
            return reply
        received = models.name_tensors(tensors_of(arrays), self.network)
        trained = models.name_tensors(tensors_of(sent), self.network)
        inputs, labels = self._used(context, steps.told or steps.seen)
        parameters = [name for name, _ in self.network.named_parameters() if name in trained]
        update = difference({n: trained[n] for n in parameters}, {n: received[n] for n in parameters})
        outcome = preflight(update, _loaded(self.network, received), inputs, labels)
        standing = {leak.example for leak in outcome.leaks}
        if len(standing) > self.most or not outcome.controlled:
            if self.mitigated:
                closed = mitigate(update, _loaded(self.network, received), (inputs, labels))
                if closed.update is not None:
                    changed = {**trained, **{n: received[n] + t for n, t in closed.update.items()}}
                    put_tensors(sent, list(changed.values()))
                    report.add("sent", [closed.summary])
                    return reply
            where = [f"example {one.example}: {one.what}, {one.by} of {one.layer}" for one in outcome.leaks]
            return report.refuse("the update would show examples", [outcome.summary, *where])
        report.add("sent", [outcome.summary])
        return reply

    def _used(self, context: Context, steps: list[Any]) -> tuple[Tensor, Tensor]:
        """All examples behind the update, each once."""
        if self.data is not None:
            return self.data(context)
        if not steps:
            raise BadValue(
                "preflight_mod",
                needs="the examples that were trained on",
                got="no batch was seen: the loss is no module, or inputs are no images",
                fix="call glasshouse.integrations.flower.used(inputs, labels) in each step, or give data=",
            )
        inputs, labels = torch.cat([s.inputs for s in steps]), torch.cat([s.labels for s in steps])
        _, first = torch.unique(inputs.flatten(1), dim=0, return_inverse=True)
        once = list(dict(zip(reversed(first.tolist()), reversed(range(len(first))), strict=True)).values())
        return inputs[sorted(once)], labels[sorted(once)]


@final
@dataclass(frozen=True)
class _Report:
    """The report of one client: a line of JSON for each decision. It stays with the client."""

    folder: Path
    message: Message
    context: Context

    def add(self, decision: str, reasons: list[str]) -> None:
        """One more line."""
        line = {"round": round_of(self.message), "decision": decision, "reasons": reasons}
        append_jsonl(self.folder / f"{self.context.node_id}.jsonl", line)

    def refuse(self, kind: str, reasons: list[str]) -> Message:
        """Note why, and tell the server that, but no number."""
        self.add("refused", [kind, *reasons])
        return Message(Error(REFUSED, f"refused by the client's guard: {kind}"), reply_to=self.message)


def _network(model: nn.Module | Architecture) -> nn.Module:
    return copy.deepcopy(model) if isinstance(model, nn.Module) else models.build(model)


def _loaded(network: nn.Module, tensors: dict[str, Tensor]) -> nn.Module:
    """A copy of ``network`` with these weights, in training mode."""
    received = copy.deepcopy(network).train()
    models.load(received, tensors, partial=True)
    return received
