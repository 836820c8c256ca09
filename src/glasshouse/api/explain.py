"""Which loss and which mode explain an update best, where nobody says how the client trained."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Final, final

import torch
from torch import Tensor, nn

from glasshouse.api.attack import attack
from glasshouse.attacks.parts.matching.distance import ROUNDING, schedule
from glasshouse.attacks.parts.replica import replica
from glasshouse.errors import BadValue, GlasshouseError
from glasshouse.federation.client import LocalTraining
from glasshouse.models.build import build, load
from glasshouse.rng import Rng
from glasshouse.tasks.base import Task
from glasshouse.tasks.declare import declared_task
from glasshouse.tensors import difference, norm
from glasshouse.transcript.view import View
from glasshouse.wire import Batch, Kind

__all__ = ["Tried", "explain"]

ITERATIONS: Final = 80
"""Of the search for examples that would explain an update; enough to tell losses apart on small networks."""
APART: Final = 10
"""Errors that differ by less than this factor do not tell two ways apart: focal loss and cross-entropy of an
untrained network do not differ by more, a wrong mode or family of losses by 100 and more. Set after looking
at the digits that the results page counts, which therefore do not judge it."""
REPRODUCED: Final = 1e-3
"""Largest relative error at which the client's own examples reproduce its update."""


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Tried:
    """One way to train that was tried.

    Attributes:
        words: the loss and the mode.
        error: of the update, 0 for a perfect match: relative to its norm where the client's own examples were
            given, else 1 minus the cosine of the best examples found.
        view: the same update under these terms, for attacks.
        likely: its error is not far above the lowest: ways that cannot be told apart here are all likely.
        reproduced: the client's own examples give this very update; None: they were not given.
    """

    words: str
    error: float
    view: View
    likely: bool = False
    reproduced: bool | None = None


def explain(
    seen: View,
    *,
    examples: tuple[Tensor, Tensor] | None = None,
    iterations: int = ITERATIONS,
    seed: int = 0,
) -> tuple[Tried, ...]:
    """Try losses and modes that are in use, the best explanation first.

    An attack that repeats another training than the client's looks weak. With the examples of a test client
    the answer is exact. Without, each way gets the same search for examples that would have caused the
    update: what fits best is likely, and no proof.

    Args:
        seen: of one update, as from :func:`glasshouse.view`; its own terms are tried, too.
        examples: the client's own inputs (B, ...) and labels (B,), in the order of its steps.
        iterations: of each search.
        seed: of the searches.

    Raises:
        BadValue: the view is not of one update by examples of one class each.

    Examples:
        >>> import torch
        >>> from glasshouse.api.attack import view
        >>> net = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
        >>> images, labels = torch.rand(2, 1, 8, 8), torch.tensor([3, 4])
        >>> loss = nn.functional.cross_entropy(net(images), labels, label_smoothing=0.1)
        >>> update = torch.autograd.grad(loss, net.parameters())
        >>> seen = view(net, update, input_shape=(1, 8, 8), examples=2)
        >>> explain(seen, examples=(images, labels))[0].words
        'label smoothing of 0.1'
    """
    if not seen.terms.architecture.task.one_label:
        raise BadValue(
            "explanation of an update",
            needs="a task with one class per example",
            got=f"task '{seen.terms.architecture.task.name}'",
            fix="state the loss: task=...",
        )
    count = seen.single(subject="explanation of an update")[1].examples
    if examples is not None and len(examples[0]) != count:
        raise BadValue(
            "explanation of an update",
            needs=f"the {count} examples behind it",
            got=f"{len(examples[0])}",
            fix="give them all, in the order of the client's steps",
        )
    found = []
    for words, view in _ways(seen, None if examples is None else examples[1]):
        try:
            if examples is None:
                (claim,) = _searched(view, iterations=iterations, seed=seed)
                found.append(Tried(words=words, error=-float(claim.confidence[0]), view=view))
            else:
                error = _repeated(view, *examples)
                found.append(Tried(words=words, error=error, view=view, reproduced=error <= REPRODUCED))
        except GlasshouseError:
            continue  # this way cannot be repeated, so it explains nothing
    ranked = sorted(found, key=lambda one: one.error)
    limit = APART * max(ranked[0].error, ROUNDING) if ranked else 0.0
    return tuple(replace(one, likely=one.error <= limit) for one in ranked)


def _searched(view: View, *, iterations: int, seed: int) -> tuple[Any, ...]:
    """The claim of a short search without any prior, whose confidence is minus the distance it reached."""
    search = {"iterations": iterations, "restarts": 1}
    return attack("inverting_gradients", search=search, tv=0.0)(view, seed=seed)


def _repeated(view: View, inputs: Tensor, labels: Tensor) -> float:
    """The relative error of the update that these examples give, trained on as a client would."""
    broadcast, update = view.single(subject="explanation of an update")
    client = replica(view, subject="explanation of an update")
    is_gradient = update.kind == "gradient"
    wanted = client.gradient() if is_gradient else client.delta()
    order = (torch.arange(len(inputs)),) if is_gradient else schedule(client)
    kind: Kind = "gradient" if is_gradient else "delta"
    model = build(view.terms.architecture)
    load(model, broadcast.tensors)
    train = replace(LocalTraining.of(view.terms, round=update.round), kind=kind, order=order)
    again = train(model, Batch(inputs=inputs, labels=labels), rng=Rng.root(0)).tensors
    return norm(difference(again, wanted)) / max(norm(wanted), 1e-30)


def _ways(seen: View, labels: Tensor | None) -> Iterator[tuple[str, View]]:
    """What is in use: every loss, in every mode in which the network behaves differently."""
    terms, agreed = seen.terms, seen.terms.architecture
    model = build(agreed)
    modes = ["evaluation"]
    if any(isinstance(m, nn.modules.batchnorm._BatchNorm) for m in model.modules()):
        modes.append("training")
    for loss, task in _losses(agreed.task, agreed.classes, labels):
        for mode in modes:
            training = terms.training.model_copy(update={"mode": mode})
            words = loss if len(modes) == 1 else f"{loss}, mode {mode}"
            told = replace(terms, architecture=replace(agreed, task=task), training=training)
            rounds = tuple(
                replace(one, broadcast=replace(one.broadcast, architecture=told.architecture))
                for one in seen.rounds
            )
            yield words, replace(seen, terms=told, rounds=rounds)


def _losses(own: Task, classes: int, labels: Tensor | None) -> Iterator[tuple[str, Task]]:
    """The stated loss and those that are common, each with its name."""
    settings: dict[str, dict[str, Any]] = {
        "cross-entropy": {},
        "label smoothing of 0.1": {"smoothing": 0.1},
        "binary cross-entropy": {"criterion": "binary"},
        "mean squared error": {"criterion": "squared"},
        "focal loss, gamma = 2": {"criterion": "focal"},
    }
    if labels is not None:  # weights follow from counts, which nobody knows without the examples
        counts = labels.bincount(minlength=classes).double()
        balanced = (len(labels) / (counts.count_nonzero() * counts.clamp_min(1))).tolist()
        settings["class weights by inverse frequency"] = {"weights": tuple(balanced)}
    every = {w: declared_task("classification", s, facts={"classes": classes}) for w, s in settings.items()}
    if own not in every.values():
        yield "the stated loss", own
    yield from every.items()
