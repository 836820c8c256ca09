"""Guards in a Flower client: refuse a crafted model before training, and a leaking update before it is sent.

A refusal is sent to the server as an error with the kind of reason but no numbers (which would help an
attacker to pass); the findings are written to the client's own report, a line of JSON per message, and the
run continues without this client's update. Mods are part of the app: a platform that requires them for every
app wraps it with :func:`guarded`.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, final

from flwr.app import Context, Message
from flwr.client import ClientFnExt
from flwr.client.mod import secagg_mod, secaggplus_mod
from flwr.clientapp import ClientApp
from torch import nn

from glasshouse.errors import BadValue
from glasshouse.guard.pursuit.limits import REMEMBERED
from glasshouse.integrations.flower import secure_terms
from glasshouse.integrations.flower.examiner import Examiner
from glasshouse.integrations.flower.lookout import Lookout
from glasshouse.integrations.flower.preflight import (
    Data,
    build_network,
    load_received,
    pass_unexamined,
    preflight_mod,
)
from glasshouse.integrations.flower.records import Mod, Next, arrays_of, is_secure, stage_of, tensors_of
from glasshouse.integrations.flower.reports import OnFinding, Report, Settings
from glasshouse.integrations.watching import watching
from glasshouse.models import build as models
from glasshouse.wire import Architecture

CRAFTED: Final = "a model that clients do not train on"
_MASKING: Final = (secagg_mod, secaggplus_mod)


def guard_mod(
    model: nn.Module | Architecture | None = None,
    *,
    data: Data | None = None,
    reports: str | Path = "guard",
    unchecked: bool = False,
    on_finding: OnFinding = "refuse",
    remembered: int = REMEMBERED,
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
        unchecked: train and send even if no network was observed, or part of it could not be looked at.
        on_finding: ``report`` only writes findings to the node's report.
        remembered: rounds before this one that are judged together with it, as examples repeat.
    """
    settings = Settings(reports=reports, unchecked=unchecked, on_finding=on_finding, remembered=remembered)
    return _Guard(network=build_network(model), data=data, settings=settings)


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
        report = Report(self.settings.at(context), message, context)
        if stage_of(message) != "train" or not message.has_content():
            reply = call_next(message, context)
            if secure_terms.is_in_sum(context) and reply.has_content():
                # Counts would reveal the examples in the sum.
                report.add("hidden", secure_terms.hide_counts(reply))
            return reply
        secure = is_secure(message)
        if secure and (term := secure_terms.broken_term(message, context)):
            return report.refuse("these terms of secure aggregation may show a single update", [term])
        folder = report.settings.folder
        remembered = report.settings.remembered
        examiner = self._examiners.setdefault(folder, Examiner(folder=folder, remembered=remembered))
        findings, reason = self._findings(message, context, examiner)
        if findings and not report.settings.reports_only:
            return report.refuse(CRAFTED, findings)
        if findings:
            report.add("reported", findings)
        if reason and not (report.settings.reports_only or report.settings.unchecked):
            return report.refuse("the model could not be examined", [reason])
        reply = self._watched(report, examiner, call_next)
        if secure and reply.has_content():
            secure_terms.remember_keys(reply, context)
            report.add("hidden", secure_terms.hide_what_travels_in_clear(reply))
        return reply

    def _findings(self, message: Message, context: Context, examiner: Examiner) -> tuple[list[str], str]:
        """Findings against the model before the app is called, and why part of it could not be judged."""
        arrays = arrays_of(message.content)
        if arrays is None or self.network is None:
            return [], ""
        try:
            tensors = models.name_tensors(tensors_of(arrays), self.network)
            findings = examiner.examine_weights(tensors, agreed=self.network.state_dict())
            if findings or self.data is None:
                return findings, ""
            received = load_received(self.network, tensors)
        except BadValue as error:
            return [str(error)], ""
        judged = examiner.examine_behaviour(
            context.node_id, received, self.data(context), is_mode_known=False
        )
        return list(judged.findings), judged.reason if judged.is_in_doubt else ""

    def _watched(self, report: Report, examiner: Examiner, call_next: Next) -> Message:
        """Run the app under observation, and refuse what is found during training."""
        message, context = report.message, report.context
        arrays = arrays_of(message.content)
        examined = self.network is not None and self.data is not None
        lookout = Lookout(
            node=context.node_id,
            received={} if arrays is None else tensors_of(arrays),
            examiner=None if examined else examiner,
            is_reported=report.settings.reports_only,
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
        if lookout.noted:
            report.add("reported", lookout.noted)
        if lookout.refusal is not None:
            return lookout.refusal
        if lookout.findings or reply is None:
            return report.refuse(CRAFTED, lookout.findings)
        may_send = self.network is not None or bool(lookout.tried) or lookout.decided
        sends = reply.has_content() and (arrays_of(reply.content) or (is_secure(message) and arrays))
        return reply if may_send or not sends else pass_unexamined(reply, lookout, report)


@final
class GuardedClientApp(ClientApp):
    """A ``ClientApp`` that guards its node; importing it in place of Flower's is the only change to a file.

    No arguments are needed. The network is the module that contains the received tensors when it is called
    with gradients enabled, and its inputs are the node's examples. Its weights are examined then, before any
    step. Its behaviour is examined as soon as 64 examples are known: before the first step if a batch has as
    many, if an earlier round of this process had, or if ``data`` provides them; else after some steps, and at
    the latest before anything is sent. A refusal stops the training, even if the app catches exceptions.

    What cannot be examined is refused, too: training without a module that contains all received tensors
    (NumPy, other threads, ``module.compile()``); a network of several inputs, or that returns no logits; a
    loss that is neither cross-entropy nor one of torch's modules, unless the loop calls
    :func:`~glasshouse.integrations.flower.used`.

    Args:
        client_fn: as of ``ClientApp``.
        mods: as of ``ClientApp``. The guard goes before all of them; updates are checked right before they
            are masked, so after noise added by later mods, or by mods that one function wraps.
        data: the node's own examples.
        reports: folder of the clients' reports.
        most: maximum number of examples exposed in an update that is sent.
        mitigated: if more are exposed, drop the exposing rows or add noise to them, if that hides all and
            changes at most half of the update; otherwise the update is not sent.
        unchecked: train and send although the model could not be examined; the report says so.
        on_finding: ``report`` only writes findings to the node's report.
        remembered: as in :func:`guard_mod`.
    """

    def __init__(  # noqa: PLR0913  # a drop-in: its settings are its arguments
        self,
        client_fn: ClientFnExt | None = None,
        mods: Sequence[Mod] | None = None,
        *,
        data: Data | None = None,
        reports: str | Path = "~/glasshouse/guard",
        most: int = 0,
        mitigated: bool = True,
        unchecked: bool = False,
        on_finding: OnFinding = "refuse",
        remembered: int = REMEMBERED,
    ) -> None:
        both: dict[str, Any] = {
            "data": data,
            "reports": reports,
            "unchecked": unchecked,
            "on_finding": on_finding,
            "remembered": remembered,
        }
        first = guard_mod(**both)
        second = preflight_mod(**both, most=most, mitigated=mitigated)
        own = list(mods or ())
        masked = 1 + max((place for place, mod in enumerate(own) if mod in _MASKING), default=-1)
        super().__init__(client_fn, [first, *own[:masked], second, *own[masked:]])


def guarded(  # noqa: PLR0913  # as the class
    app: ClientApp,
    model: nn.Module | Architecture | None = None,
    *,
    data: Data | None = None,
    reports: str | Path = "guard",
    most: int = 0,
    unchecked: bool = False,
    on_finding: OnFinding = "refuse",
    remembered: int = REMEMBERED,
) -> ClientApp:
    """``app`` wrapped in :func:`guard_mod` and :func:`preflight_mod`, which the app cannot change.

    Outside the app an update under SecAgg+ is already masked: its terms are checked, the update is not, and
    the report says so.

    Args:
        app: of the researcher.
        model: the agreed network; None: the one observed in training.
        data: the node's own examples.
        reports: folder of the clients' reports.
        most: as in :func:`preflight_mod`.
        unchecked: as in :func:`guard_mod`.
        on_finding: as there.
        remembered: as there.
    """
    both: dict[str, Any] = {
        "data": data,
        "reports": reports,
        "unchecked": unchecked,
        "on_finding": on_finding,
        "remembered": remembered,
    }
    first, second = guard_mod(model, **both), preflight_mod(model, **both, most=most)
    return _AppInside(app, first, second)


@final
class _AppInside(ClientApp):
    """A ``ClientApp`` inside mods that it does not know about."""

    def __init__(self, app: ClientApp, first: Mod, second: Mod) -> None:
        super().__init__()
        self._app, self._first, self._second = app, first, second

    def __call__(self, message: Message, context: Context) -> Message:
        """Run the app between the mods."""
        return self._first(message, context, lambda m, c: self._second(m, c, self._app))
