"""One judge for every framework: message and policy in, decision out."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final, Protocol

from numpy.typing import NDArray

from glasshouse.gate.ledger import Ledger
from glasshouse.gate.mechanism import (
    capacity_bits,
    privatize,
    round_changes,
    sensitivity_squared,
    spent_epsilon,
)
from glasshouse.gate.message import Arrays, Decision, Outgoing, Reason, few
from glasshouse.gate.policy import Policy
from glasshouse.gate.rules import (
    agreed_form,
    limited_change,
    measure_change,
    shown_noise,
    split_buffers,
    treat_documents,
    treat_fields,
)

Check = Callable[[Arrays, Arrays], list[Reason]]


class Papers(Protocol):
    """Judges documents among the tensors; :class:`glasshouse.gate.preflight.documents.DocumentGuard`."""

    def split(self, arrays: Arrays) -> tuple[dict[str, NDArray[Any]], dict[str, NDArray[Any]]]:
        """The documents, and all other tensors."""
        ...

    def judge(self, run: str, documents: Arrays) -> tuple[dict[str, NDArray[Any]], list[Reason]]:
        """What may leave of these documents, and reasons to refuse."""
        ...


REPLACED: Final = "The site did not answer this message."
"""The fixed words in the place of every error text and refusal."""
_UNDER_MASK: Final = ("norm", "noise", "sparse", "mechanism", "preflight")


def judge(
    policy: Policy,
    message: Outgoing,
    received: Arrays | None,
    ledger: Ledger,
    *,
    preflight: Check | None = None,
    documents: Papers | None = None,
) -> Decision:
    """Decide what of ``message`` may leave.

    What is sent is rebuilt from allowed parts: what no rule allows is not in it.

    Args:
        policy: of the site.
        message: what the uploaded app handed in; its tensors are the gate's own copies and are changed.
        received: the tensors that it answers, by the same names; None: it answers none.
        ledger: what left before; not changed here (the caller adds the entry it logs).
        preflight: looks for the site's own examples in the tensors as they would be sent.
        documents: judges tensors of bytes that are documents; None: they are tensors like any.

    Returns:
        The decision; its message is None if refused.
    """
    refusals = [*message.oddities, *ledger.within(message, policy.budget), *_admitted(policy, message)]
    if message.error is not None:
        return _replace_error(message, refusals)
    fields, texts = treat_fields(message, policy.out), treat_documents(message, policy.out)
    refusals += [*fields.refusals, *texts.refusals]
    changes = [*fields.changes, *texts.changes]
    kept = replace(message, fields=fields.kept, documents={}, oddities=())
    if message.masked:
        # Nothing can be told of masked vectors: only what stands beside them is judged.
        got = message.digest()
        kept = replace(kept, documents=message.documents)
        refusals = [reason for reason in refusals if reason not in texts.refusals]
        decision = Decision(action="passed", message=kept, got=got, unjudged=_UNDER_MASK)
    else:
        got = kept.digest()
        papers: dict[str, NDArray[Any]] = {}
        if documents is not None:
            papers, rest = documents.split(kept.arrays)
            papers, found = documents.judge(message.origin.run, papers)
            refusals, kept = [*refusals, *found], replace(kept, arrays=rest)
            received = None if received is None else documents.split(received)[1]
        decision = _judge_tensors(policy, kept, received, ledger, got=got, form_only=bool(refusals))
        if papers and decision.message is not None:
            sent = replace(decision.message, arrays={**decision.message.arrays, **papers})
            decision = replace(decision, message=sent, unjudged=("words in documents",))
        if preflight is not None and decision.action != "refused" and not refusals and kept.arrays:
            refusals += preflight(kept.arrays, received or {})
    return _conclude(decision, refusals, changes)


def _admitted(policy: Policy, message: Outgoing) -> list[Reason]:
    """Whether a message of this kind, from this app, may leave at all."""
    found = []
    if message.kind not in policy.kinds:
        found.append(Reason(rule="kind"))
    if policy.apps and f"sha256:{message.origin.app}" not in policy.apps:
        found.append(Reason(rule="app", detail=message.origin.app[:12] or "unknown"))
    if message.masked and policy.secure_sum == "refused":
        found.append(Reason(rule="secure_sum"))
    bare = message.kind == "train" and not message.masked and message.error is None
    if bare and policy.secure_sum == "required":
        found.append(Reason(rule="secure_sum", detail="not masked"))
    if message.masked and message.arrays:
        # a mask beside it would let a bare update out unjudged; Flower's mod sends none
        found.append(Reason(rule="secure_sum", detail="tensors beside masked vectors"))
    return found


def _replace_error(message: Outgoing, refusals: list[Reason]) -> Decision:
    """An error leaves as fixed words: its text is the uploaded code's."""
    length = Reason(rule="error_text", detail=f"{len(message.error or ''):,} characters")
    bare = Outgoing(kind=message.kind, origin=message.origin, error=REPLACED, bytes=message.bytes)
    if refusals:
        return Decision(action="refused", reasons=few((*refusals, length)))
    return Decision(action="changed", reasons=(length,), message=bare)


def _judge_tensors(
    policy: Policy,
    message: Outgoing,
    received: Arrays | None,
    ledger: Ledger,
    *,
    got: str,
    form_only: bool,
) -> Decision:
    """The rules on tensors; ``form_only`` if the message is refused anyway and no value need be looked at."""
    out = policy.out
    if not message.arrays:
        return Decision(action="passed", message=message, got=got)
    if received is None:
        return Decision(action="refused", reasons=(Reason(rule="no_model_received"),), got=got)
    form = agreed_form(message.arrays, received)
    if form or form_only:
        return Decision(action="refused" if form else "passed", reasons=tuple(form), got=got)
    floating, refusals, changes = split_buffers(message.arrays, received, out)
    change = measure_change(floating, received)
    measures = {"norm": change.norm, "changed": change.changed, "numbers": float(change.numbers)}
    refusals += limited_change(change, out)
    if out.noise is not None and not refusals:
        found, ceiling = shown_noise(floating, received, out.noise)
        refusals += found
        measures |= {} if ceiling is None else {"noise_ceiling": ceiling}
    decision = Decision(action="passed", message=message, measures=measures, got=got)
    if ledger.seen(message, decision):
        refusals.append(Reason(rule="sent_before"))
    mu_squared = 0.0
    if out.mechanism is not None and not refusals:
        # The budget is checked before noise is drawn: nothing is spent on what does not leave.
        mu_squared = sensitivity_squared(out.mechanism)
        total = ledger.mu_squared.get(policy.dataset, 0.0) + mu_squared
        epsilon = spent_epsilon(total, delta=out.mechanism.delta)
        if epsilon > out.mechanism.epsilon:
            refusals.append(
                Reason(rule="budget_epsilon", detail=f"{epsilon:.3g} > {out.mechanism.epsilon:g}")
            )
        else:
            privatize(floating, received, rule=out.mechanism, norm=change.norm)
            measures["bits"] = capacity_bits(change.numbers, rule=out.mechanism)
            changes.append(Reason(rule="noised", detail=f"epsilon so far {epsilon:.4g}"))
    if out.grid and not refusals:
        round_changes(floating, received, grid=out.grid)
        changes.append(Reason(rule="grid"))
    if refusals:
        return replace(decision, action="refused", reasons=tuple(refusals), message=None)
    return replace(decision, reasons=tuple(changes), mu_squared=mu_squared)


def _conclude(decision: Decision, refusals: list[Reason], changes: list[Reason]) -> Decision:
    """Join what was found beside the tensors and in them: one refusal refuses all."""
    if decision.action == "refused":
        refusals = [*refusals, *decision.reasons]
    if refusals:
        return replace(decision, action="refused", reasons=few(refusals), message=None, mu_squared=0.0)
    changes = [*changes, *decision.reasons]
    return replace(decision, action="changed" if changes else "passed", reasons=few(changes))
