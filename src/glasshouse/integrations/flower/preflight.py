"""A Flower client mod that checks the update before it is sent."""

import copy
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import final

from flwr.app import ArrayRecord, Context, Message
from torch import Tensor, nn

from glasshouse.errors import BadValue
from glasshouse.guard.mitigate import mitigate
from glasshouse.guard.preflight import preflight
from glasshouse.guard.pursued import Memory
from glasshouse.guard.pursuit.limits import COVERED, REMEMBERED
from glasshouse.guard.watch import Watched, watch
from glasshouse.integrations.flower.examiner import Examples
from glasshouse.integrations.flower.lookout import Lookout
from glasshouse.integrations.flower.records import Mod, Next, arrays_of, put_tensors, stage_of, tensors_of
from glasshouse.integrations.flower.reports import OnFinding, Report, Settings
from glasshouse.integrations.watching import current, watching
from glasshouse.models import build as models
from glasshouse.tensors import difference
from glasshouse.wire import Architecture

Data = Callable[[Context], Examples]
"""Returns a node's own examples, as they enter the network, and their classes."""


def preflight_mod(  # noqa: PLR0913  # its settings are its arguments
    model: nn.Module | Architecture | None = None,
    *,
    data: Data | None = None,
    reports: str | Path = "guard",
    most: int = 0,
    mitigated: bool = False,
    unchecked: bool = False,
    on_finding: OnFinding = "refuse",
    remembered: int = REMEMBERED,
) -> Mod:
    """A client mod that refuses to send an update that exposes examples of the client.

    It goes after ``secaggplus_mod``, if present: a masked update cannot be checked.

    Args:
        model: the network that is trained; None: the one observed in training.
        data: the node's own examples; None: those observed in training.
        reports: folder of the clients' reports.
        most: maximum number of examples exposed in an update that is sent.
        mitigated: if more are exposed, send it without the exposing rows, or with noise on them, if that
            hides all and changes at most half of the update (:func:`glasshouse.guard.mitigate.mitigate`).
        unchecked: as in :func:`guard_mod`.
        on_finding: as there.
        remembered: as there.
    """
    settings = Settings(
        reports=reports,
        most=most,
        mitigated=mitigated,
        unchecked=unchecked,
        on_finding=on_finding,
        remembered=remembered,
    )
    return _Preflight(network=build_network(model), data=data, settings=settings)


@final
@dataclass(kw_only=True)
class _Preflight:
    """The mod returned by :func:`preflight_mod`."""

    network: nn.Module | None
    data: Data | None
    settings: Settings
    _memory: dict[int, Memory] = field(default_factory=dict)

    def __call__(self, message: Message, context: Context, call_next: Next) -> Message:
        """Train, then check what would be sent."""
        arrays = arrays_of(message.content) if message.has_content() else None
        if stage_of(message) != "train" or arrays is None:
            return call_next(message, context)
        report = Report(self.settings.at(context), message, context)
        with _shared_lookout(context.node_id, tensors_of(arrays)) as lookout, watch() as layers:
            reply = call_next(message, context)
            lookout.finish()
            if lookout.findings:
                return reply  # the guard refuses it
            sent = arrays_of(reply.content) if reply.has_content() else None
            if sent is None:
                report.add("not checked: nothing is sent, or only what is masked", [])
                return reply
            reply = self._checked(reply, sent, lookout, layers, report)
        lookout.decided = True
        lookout.refusal = None if reply.has_content() else reply
        return reply

    def _checked(
        self, reply: Message, sent: ArrayRecord, lookout: Lookout, layers: Watched, report: Report
    ) -> Message:
        """``reply``, a mitigated version of it, or a refusal."""
        settings, network = report.settings, self.network
        if network is None:
            unexamined = lookout.examiner is not None and not lookout.tried
            if lookout.network is None or lookout.examples is None or unexamined:
                return pass_unexamined(reply, lookout, report)
            network = lookout.network
            received = network.state_dict()
        else:
            received = models.name_tensors(lookout.received, network)
            network = load_received(network, received)
        trained = models.name_tensors(tensors_of(sent), network)
        examples = self._used(report.context, lookout)
        # Running statistics travel with the parameters, and a server may read them, too.
        state = [name for name, t in network.state_dict().items() if t.is_floating_point()]
        names = [name for name in state if name in trained and name in received]
        update = difference({n: trained[n] for n in names}, {n: received[n] for n in names})
        memory = self._memory.get(report.context.node_id)
        try:
            outcome = preflight(update, network, *examples, watched=layers, memory=memory)
        except BadValue as error:  # an update that overflows cannot be checked
            return report.refuse("the update cannot be checked", [str(error)])
        if outcome.seen < COVERED and not (settings.unchecked or settings.reports_only):
            why = f"{outcome.coverage} ({COVERED:.0%} are needed)"
            return report.refuse("part of the update could not be checked", [outcome.summary, why])
        standing = {leak.example for leak in outcome.leaks}
        also = [outcome.coverage, *([lookout.summary] if lookout.tried else [])]
        if len(standing) <= settings.most and outcome.controlled:
            report.add("sent", [outcome.summary, *also])
            return self._remember(reply, network, update, report)
        closed = mitigate(update, network, (*examples, layers), memory=memory) if settings.mitigated else None
        if closed is not None and closed.update is not None:
            kept = {name: received[name] for name in names}  # what the remedy left out is not sent
            changed = {**trained, **kept, **{n: received[n] + t for n, t in closed.update.items()}}
            put_tensors(sent, list(changed.values()))
            report.add("sent", [closed.summary, *also])
            return self._remember(reply, network, closed.update, report)
        if settings.reports_only:
            report.add("reported", [outcome.summary, *also])
            return self._remember(reply, network, update, report)
        where = [f"example {one.example}: {one.what}, {one.by} of {one.layer}" for one in outcome.leaks]
        return report.refuse("the update would show examples", [outcome.summary, *where])

    def _remember(
        self, reply: Message, network: nn.Module, update: Mapping[str, Tensor], report: Report
    ) -> Message:
        """Keep what is sent: later updates are judged together with it, as examples repeat."""
        node = report.context.node_id
        known = self._memory.get(node, Memory())
        self._memory[node] = known.after(
            copy.deepcopy(network), dict(update), most=report.settings.remembered
        )
        return reply

    def _used(self, context: Context, lookout: Lookout) -> Examples:
        """All examples behind the update, without duplicates."""
        if self.data is not None:
            return self.data(context)
        if lookout.examples is None:
            raise BadValue(
                "preflight_mod",
                needs="the examples that were trained on",
                got=f"none: {lookout.unable}",
                fix="call glasshouse.integrations.flower.used(inputs, labels) in each step, or give data=",
            )
        return lookout.examples


def pass_unexamined(reply: Message, lookout: Lookout, report: Report) -> Message:
    """Send or refuse a reply whose model could not be examined."""
    sent = arrays_of(reply.content)
    if sent is not None and _are_equal(tensors_of(sent), lookout.received):
        report.add("sent", ["nothing was trained: what is sent is what was received"])
        return reply
    if report.settings.unchecked:
        report.add("sent unchecked", [lookout.unable])
        return reply
    return report.refuse("the model could not be examined", [lookout.unable])


def _are_equal(sent: Mapping[str, Tensor], received: Mapping[str, Tensor]) -> bool:
    return sent.keys() == received.keys() and all(t.equal(received[name]) for name, t in sent.items())


@contextmanager
def _shared_lookout(node: int, received: Mapping[str, Tensor]) -> Iterator[Lookout]:
    """The guard's lookout if one is active, else a new one."""
    known = next((watcher for watcher in current() if isinstance(watcher, Lookout)), None)
    lookout = known or Lookout(node=node, received=received)
    with nullcontext() if known else watching(lookout):
        yield lookout


def build_network(model: nn.Module | Architecture | None) -> nn.Module | None:
    """A copy of the agreed network for a mod; None if there is none."""
    if model is None:
        return None
    return models.adapted_copy(model) if isinstance(model, nn.Module) else models.build(model)


def load_received(network: nn.Module, tensors: dict[str, Tensor]) -> nn.Module:
    """A copy of ``network`` with these weights, in training mode."""
    received = copy.deepcopy(network).train()
    models.load(received, tensors, partial=True)
    return received
