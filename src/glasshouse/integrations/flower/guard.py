"""Guards in a Flower client: refuse a crafted model before training, and a leaking update before it is sent.

A refusal is sent to the server as an error with the kind of reason but no numbers (which would help an
attacker to pass); the findings are written to the client's own report, a line of JSON per message, and the
run continues without this client's update. Mods are part of the app: a platform that requires them for every
app wraps it with :func:`guarded`.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, final

from flwr.app import Context, Message
from torch import nn

from glasshouse.errors import BadValue
from glasshouse.integrations.flower.examiner import Examiner
from glasshouse.integrations.flower.lookout import Lookout
from glasshouse.integrations.flower.preflight import (
    Data,
    Mod,
    Next,
    build_network,
    load_received,
    pass_unexamined,
)
from glasshouse.integrations.flower.records import arrays_of, is_secure, stage_of, tensors_of
from glasshouse.integrations.flower.reports import Report, Settings
from glasshouse.integrations.flower.secure_terms import (
    broken_term,
    hide_counts,
    hide_what_travels_in_clear,
    is_in_sum,
    remember_keys,
)
from glasshouse.integrations.flower.watching import watching
from glasshouse.models import build as models
from glasshouse.wire import Architecture

__all__ = ["guard_mod"]

CRAFTED: Final = "a model that clients do not train on"


def guard_mod(
    model: nn.Module | Architecture | None = None,
    *,
    data: Data | None = None,
    reports: str | Path = "guard",
    unchecked: bool = False,
) -> Mod:
    """A client mod that refuses crafted models, and SecAgg+ terms that protect no client; it goes first.

    Metrics and example counts sent in clear text beside a secure sum are removed from the reply; from
    evaluation replies the counts are removed as well.

    A model is judged by its tensors and by its behaviour on 64 of the node's examples, compared with honest
    models of its architecture, which the client trains once for this, for a few steps.

    Args:
        model: the agreed network; its weights are not used. None: the network observed in training
            (:class:`glasshouse.integrations.flower.GuardedClientApp` describes what that can miss).
        data: the node's own examples, tried before training. None: those observed in training, as soon as
            there are 64, or before sending.
        reports: folder of the clients' reports.
        unchecked: where ``model`` is None, train and send even if no network was observed.
    """
    return _Guard(
        network=build_network(model), data=data, settings=Settings(reports=reports, unchecked=unchecked)
    )


@final
@dataclass(kw_only=True)
class _Guard:
    """The mod returned by :func:`guard_mod`."""

    network: nn.Module | None
    data: Data | None
    settings: Settings
    _examiners: dict[Path, Examiner] = field(default_factory=dict)

    def __call__(self, message: Message, context: Context, call_next: Next) -> Message:
        """Check the message, pass it on, and remove clear-text information from the reply."""
        settings = self.settings.at(context)
        report = Report(settings.folder, message, context)
        if stage_of(message) != "train" or not message.has_content():
            reply = call_next(message, context)
            if is_in_sum(context) and reply.has_content():  # counts would reveal the examples in the sum
                report.add("hidden", hide_counts(reply))
            return reply
        secure = is_secure(message)
        if secure and (term := broken_term(message, context)):
            return report.refuse("these terms of secure aggregation may show a single update", [term])
        examiner = self._examiners.setdefault(settings.folder, Examiner(folder=settings.folder))
        findings = self._findings(message, context, examiner)
        if findings:
            return report.refuse(CRAFTED, findings)
        reply = self._watched(message, context, call_next, (settings, report, examiner))
        if secure and reply.has_content():
            remember_keys(reply, context)
            report.add("hidden", hide_what_travels_in_clear(reply))
        return reply

    def _findings(self, message: Message, context: Context, examiner: Examiner) -> list[str]:
        """Findings against the model before the app is called."""
        arrays = arrays_of(message.content)
        if arrays is None or self.network is None:
            return []
        try:
            tensors = models.name_tensors(tensors_of(arrays), self.network)
            findings = examiner.examine_weights(tensors, agreed=self.network.state_dict())
            if findings or self.data is None:
                return findings
            received = load_received(self.network, tensors)
        except BadValue as error:
            return [str(error)]
        return examiner.examine_behaviour(context.node_id, received, self.data(context), is_mode_known=False)

    def _watched(
        self, message: Message, context: Context, call_next: Next, tools: tuple[Settings, Report, Examiner]
    ) -> Message:
        """Run the app under observation, and refuse what is found during training."""
        settings, report, examiner = tools
        arrays = arrays_of(message.content)
        examined = self.network is not None and self.data is not None
        lookout = Lookout(
            node=context.node_id,
            received={} if arrays is None else tensors_of(arrays),
            examiner=None if examined else examiner,
        )
        if self.data is not None and self.network is None and arrays is not None:
            examiner.kept[context.node_id] = self.data(context)
        reply: Message | None = None
        try:
            with watching(lookout):
                reply = call_next(message, context)
            lookout.finish()
        except Exception:  # an app may turn a refusal in its training into any exception
            if not lookout.findings and lookout.refusal is None:
                raise
        if lookout.refusal is not None:
            return lookout.refusal
        if lookout.findings or reply is None:
            return report.refuse(CRAFTED, lookout.findings)
        may_send = self.network is not None or bool(lookout.tried) or lookout.decided
        sends = reply.has_content() and (arrays_of(reply.content) or (is_secure(message) and arrays))
        return reply if may_send or not sends else pass_unexamined(reply, lookout, settings, report)
