"""Mitigation: the remedy that changes an update least and leaves nothing that preflight finds.

Remedies (:mod:`glasshouse.guard.remedies`) drop rows that expose an example, clip examples, grow the batch,
add rotated copies, or add noise; if one is not sufficient, exposing rows are dropped as well. If nothing
helps, or the update would change too much, the client is advised not to send it. All this happens on the
client and no data leave it; the decision may be written to a file of the client's own.

A mitigated update is believed only after everything, the pursuit of fixed combinations included, was run anew
on it. Leaks that preflight does not check (gradient inversion, labels) are not mitigated.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, final

from torch import Tensor, nn

from glasshouse.guard.preflight import Examples, Preflight
from glasshouse.guard.pursued import Memory
from glasshouse.guard.pursuit.examples import Own
from glasshouse.guard.remedies import MOST, REMEDIES, Case, Train, distance, drop_rows, gradient_of
from glasshouse.guard.watch import Watched
from glasshouse.store import append_jsonl
from glasshouse.wire import Kind

__all__ = ["Mitigation", "Trial", "mitigate"]

CHEAP: Final = 0.05
"""A remedy that changes the update by less than this share of its norm is accepted at once."""


@final
@dataclass(frozen=True, kw_only=True)
class Trial:
    """One remedy on one update.

    Attributes:
        remedy: what was done, in words.
        standing: number of examples still exposed in the update.
        change: norm of the change, relative to that of the original update.
    """

    remedy: str
    standing: int
    change: float


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Mitigation:
    """What may be sent instead of an update.

    Attributes:
        update: the one to send; None: no remedy helps, do not send.
        remedy: what was done; empty: nothing was needed, or nothing helps.
        before: what is exposed in the original update.
        after: what is exposed in ``update``; None: nothing is to be sent.
        trials: all remedies that were tried.
    """

    update: Mapping[str, Tensor] | None
    remedy: str
    before: Preflight
    after: Preflight | None
    trials: tuple[Trial, ...]

    @property
    def summary(self) -> str:
        """One sentence."""
        if self.update is None:
            hidden = ", ".join(self.before.hidden)
            more = f", {hidden} may give away more than can be named," if hidden else ""
            return f"Do not send this update: {_count(self.before)}{more} and no remedy closes that."
        if not self.remedy:
            return "Send it: no example was found in this update."
        change = next(trial.change for trial in self.trials if trial.remedy == self.remedy)
        return f"Send it after '{self.remedy}' (changes it by {change:.0%}): {_count(self.before)}, now none."


def mitigate(
    update: Mapping[str, Tensor],
    model: nn.Module,
    batch: tuple[Tensor, Tensor] | tuple[Tensor, Tensor, Watched],
    *,
    kind: Kind = "delta",
    train: Train | None = None,
    memory: Memory | None = None,
    log: Path | None = None,
) -> Mitigation:
    """Change an update as little as possible so that none of the client's examples is exposed in it.

    For sentences the only remedy is a larger batch: every layer exposes them, and preflight checks the first.

    Args:
        update: as in :func:`~glasshouse.guard.preflight.preflight`.
        model: as received, in the mode in which it is trained; not modified.
        batch: all examples behind the update, (B, ...), their classes, (B,), and, if it was recorded, the
            training.
        kind: ``gradient`` or ``delta``.
        train: computes the update of other examples, for remedies that need it; has a default for gradients.
        memory: as in :func:`~glasshouse.guard.preflight.preflight`; the batch may grow with its examples.
        log: a file of the client's own, to which the decision is appended as a line of JSON.

    Raises:
        BadValue: as :func:`~glasshouse.guard.preflight.preflight`.

    Examples:
        >>> import torch
        >>> _ = torch.manual_seed(1)
        >>> model = nn.Sequential(nn.Flatten(), nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))
        >>> one = torch.tensor([[[[0.0, 1.0], [0.5, 0.2]]]]), torch.tensor([1])
        >>> seen = mitigate(gradient_of(model, *one), model, one, kind="gradient")
        >>> seen.update is None, len(seen.before.standing("input"))
        (True, 1)
    """
    if train is None and kind == "gradient":

        def train(inputs: Tensor, labels: Tensor) -> Mapping[str, Tensor]:
            return {n: g for n, g in gradient_of(model, inputs, labels).items() if n in update}

    inputs, labels, watched = batch if len(batch) == 3 else (*batch, None)
    examples = Examples.behind(
        update, model, Own(inputs=inputs, targets=labels), kind=kind, watched=watched, memory=memory
    )
    case = Case(
        update=update,
        model=model,
        inputs=inputs,
        labels=labels,
        kind=kind,
        train=train,
        memory=memory,
        behind=examples,
    )
    mitigation = _find_remedy(case, examples.find_in(update))
    if log is not None:
        append_jsonl(log, _line(mitigation))
    return mitigation


def _find_remedy(case: Case, before: Preflight) -> Mitigation:
    if before.controlled and not before.leaks and not before.hidden:
        return Mitigation(update=case.update, remedy="", before=before, after=before, trials=())
    trials: list[Trial] = []
    closed: list[tuple[float, str, Case, Preflight]] = []
    remedies = REMEDIES if before.sentences is None else {"grow the batch": REMEDIES["grow the batch"]}
    for name, remedy in remedies.items() if before.controlled else ():
        words, changed = name, remedy(case)
        if changed is None:
            continue
        after = changed.check()
        # A remedy that leaves some examples readable may be enough once their rows are gone.
        if (
            after.leaks
            and before.sentences is None
            and remedy is not drop_rows
            and (rest := drop_rows(changed)) is not None
        ):
            words, changed, after = f"{name}, drop rows", rest, rest.check()
        change = distance(case.update, changed.update)
        trials.append(Trial(remedy=words, standing=_standing(after), change=change))
        # Believed only where the search, run anew, finds nothing in what would be sent, and could look.
        found = after.leaks or after.hidden
        if not found and after.controlled and change <= MOST and changed.passes():
            closed.append((change, words, changed, after))
            if change < CHEAP:
                break
    if not closed:
        return Mitigation(update=None, remedy="", before=before, after=None, trials=tuple(trials))
    _, words, changed, after = min(closed, key=lambda one: one[0])
    return Mitigation(update=changed.update, remedy=words, before=before, after=after, trials=tuple(trials))


def _line(mitigation: Mitigation) -> dict[str, object]:
    """The log entry: only counts and names."""
    return {
        "decision": "not sent" if mitigation.update is None else "sent",
        "remedy": mitigation.remedy,
        "standing": _standing(mitigation.before),
        "trials": [[trial.remedy, trial.standing, round(trial.change, 4)] for trial in mitigation.trials],
    }


def _standing(seen: Preflight) -> int:
    return len({leak.example for leak in seen.leaks})


def _count(seen: Preflight) -> str:
    return f"{_standing(seen)} of your {seen.examples} examples stood in it"
