"""Which loss and which mode explain an update best, where nobody says how the client trained."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any, Final, Literal, final

import torch
from torch import Tensor, nn

from glasshouse.api.attack import attack
from glasshouse.attacks.parts.matching.distance import ROUNDING, schedule
from glasshouse.attacks.parts.replica import replica
from glasshouse.audit.captured.terms import variants
from glasshouse.errors import BadValue, GlasshouseError
from glasshouse.federation.client import LocalTraining
from glasshouse.federation.unstated import repeat, ways
from glasshouse.interfaces.modes import differs_by_mode
from glasshouse.limits import Count, check_value
from glasshouse.models.build import build, load
from glasshouse.process import as_torch_starts
from glasshouse.rng import Rng
from glasshouse.tasks.base import Reduction, Task
from glasshouse.tasks.usual import usual_tasks
from glasshouse.tensors import difference, norm
from glasshouse.transcript.view import RoundView, View
from glasshouse.wire import Batch, Kind

__all__ = ["Tried", "explain"]

Mode = Literal["evaluation", "training"]
_SUBJECT: Final = "explanation of an update"

ITERATIONS: Final = 80
"""Of the search for examples that would explain an update; enough to tell losses apart on small networks."""
APART: Final = 10
"""Errors that differ by less than this factor do not tell two ways apart: focal loss and cross-entropy of an
untrained network do not differ by more, a wrong mode or family of losses by 100 and more. Set after looking
at the digits that the results page counts, which therefore do not judge it."""
_FLOATS: Final = {torch.float16, torch.bfloat16, torch.float32, torch.float64}
_REDUCED: Final = {"sum": "summed over the batch", "mean": "averaged over the batch"}
_SCALES: Final[tuple[tuple[str, Any, Any], ...]] = (
    ("examples divided by 255, as they enter the network: give them so", 0.0, 255.0),
    ("examples times 255, without a scale to [0, 1]: give them so", 0.0, 1 / 255),
    ("examples normalised: gh.view(gh.adapt(net, normalize=(0.5, 0.5)), ...)", 0.5, 0.5),
    ("examples normalised: gh.view(gh.adapt(net, normalize=(0.1307, 0.3081)), ...)", 0.1307, 0.3081),
    ("examples normalised: gh.view(gh.adapt(net, normalize=(0.2860, 0.3530)), ...)", 0.2860, 0.3530),
    (
        "examples normalised as for ImageNet: gh.view(gh.adapt(net, normalize=(mean, std)), ...)",
        (0.485, 0.456, 0.406),
        (0.229, 0.224, 0.225),
    ),
    (
        "examples normalised as for CIFAR-10: gh.view(gh.adapt(net, normalize=(mean, std)), ...)",
        (0.4914, 0.4822, 0.4465),
        (0.2470, 0.2435, 0.2616),
    ),
    (
        "examples normalised as for CIFAR-10: gh.view(gh.adapt(net, normalize=(mean, std)), ...)",
        (0.4914, 0.4822, 0.4465),
        (0.2023, 0.1994, 0.2010),
    ),
)
"""How loops scale their examples before the network: words, mean and standard deviation."""
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
        stated: terms can state this way, so that attacks repeat it; False: it has a name, and ``view`` has
            the terms as they were.
        likely: its error is not far above the lowest: ways that cannot be told apart here are all likely.
        reproduced: the client's own examples give this very update; None: they were not given.
    """

    words: str
    error: float
    view: View
    stated: bool = True
    likely: bool = False
    reproduced: bool | None = None


@as_torch_starts()
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
    update: what fits best is likely, and no proof. With them, sums over the batch, losses of pairs and
    triples, and optimizers that no terms can state are tried, too.

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
    _check(seen, examples, iterations, seed)
    if examples is not None:
        examples = (examples[0], examples[1].long())
    found, modes = [], _modes(seen)
    for words, view in _ways(seen, None if examples is None else examples[1], modes):
        try:
            if examples is None:
                (claim,) = _searched(view, iterations=iterations, seed=seed)
                found.append(Tried(words=words, error=-float(claim.confidence[0]), view=view))
            else:
                error = _repeated(view, *examples)
                found.append(Tried(words=words, error=error, view=view, reproduced=error <= REPRODUCED))
        except GlasshouseError:
            continue  # this way cannot be repeated, so it explains nothing
    # What no terms can state takes three quarters of the time, and is asked where nothing else explains it.
    if examples is not None and not any(one.reproduced for one in found):
        found += _unstated(seen, *examples, modes)
        if not any(one.reproduced for one in found):
            found += _rescaled(seen, *examples, modes)
            found += _restated(seen, *examples)
            found += _multiplied(seen, *examples, modes)
    ranked = sorted(found, key=lambda one: one.error)
    limit = APART * max(ranked[0].error, ROUNDING) if ranked else 0.0
    return tuple(replace(one, likely=one.error <= limit) for one in ranked)


def _check(seen: Any, examples: Any, iterations: Any, seed: Any) -> None:
    """Refuse what no way of training can be tried on.

    Raises:
        BadValue: no view, a task of other targets, or examples that are not those behind the update.
    """
    subject = _SUBJECT
    if not isinstance(seen, View):
        got = f"an object of type {type(seen).__name__}"
        raise BadValue(subject, needs="a view", got=got, fix="make it by gh.view(model, update, ...)")
    for name, value in {"iterations": iterations, "seed": seed}.items():
        if type(value) is not int:
            got = f"{value!r} of type {type(value).__name__}"
            raise BadValue(subject, needs=f"{name} as an int", got=got, fix="round it")
    check_value(subject, "iterations", iterations, Count)
    agreed = seen.terms.architecture
    if not agreed.task.one_label:
        needs, got = "a task with one class per example", f"task '{agreed.task.name}'"
        raise BadValue(subject, needs=needs, got=got, fix="state the loss: task=...")
    if examples is None:
        return
    pair = isinstance(examples, tuple | list) and len(examples) == 2
    if not pair or not all(isinstance(one, Tensor) for one in examples):
        got = ", ".join(type(one).__name__ for one in examples) if pair else type(examples).__name__
        fix = "examples=(torch.as_tensor(inputs), torch.as_tensor(labels))"
        raise BadValue(subject, needs="examples as a pair of tensors", got=got, fix=fix)
    inputs, labels = examples
    if not bool(inputs.isfinite().all()):
        fix = "leave out what is missing, or fill it in as the client did"
        raise BadValue(subject, needs="finite examples", got="NaN or infinity among them", fix=fix)
    count, shape = seen.single(subject=subject)[1].examples, tuple(agreed.input_shape)
    if len(inputs) != count or tuple(inputs.shape[1:]) != shape:
        raise BadValue(
            subject,
            needs=f"the {count} examples behind it, {(count, *shape)}",
            got=f"{tuple(inputs.shape)}",
            fix="give them all, in the order of the client's steps",
        )
    if (own := agreed.inputs.blank(1).dtype) != inputs.dtype and not {own, inputs.dtype} <= _FLOATS:
        raise BadValue(
            subject,
            needs=f"examples of {own}, in {list(agreed.inputs.range)}, as they enter the network",
            got=f"{inputs.dtype}, up to {inputs.max()}",
            fix="scale them as the client does, such as examples=(inputs / 255, labels)",
        )
    wrong = agreed.task.violation(labels)
    if wrong is None and (len(labels) != count or int(labels.min()) < 0):
        wrong = f"a class of each of the {count} examples", f"{labels.tolist()[:8]}"
    if wrong is not None:
        is_ignored = not labels.is_floating_point() and bool((labels < 0).any())
        fix = "give the classes that the loss was given"
        fix = "leave out what the loss ignores, also in gh.view(..., examples=...)" if is_ignored else fix
        raise BadValue(subject, needs=wrong[0], got=wrong[1], fix=fix)


def _searched(view: View, *, iterations: int, seed: int) -> tuple[Any, ...]:
    """The claim of a short search without any prior, whose confidence is minus the distance it reached."""
    search = {"iterations": iterations, "restarts": 1}
    return attack("inverting_gradients", search=search, tv=0.0)(view, seed=seed)


def _repeated(view: View, inputs: Tensor, labels: Tensor) -> float:
    """The relative error of the update that these examples give, trained on as a client would."""
    case = _Case.of(view, inputs, labels)
    again = case.how(case.model(), case.data, rng=Rng.root(0)).tensors
    return case.error(again)


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class _Case:
    """An update, and what its repetition starts from.

    Attributes:
        view: of one update.
        how: the training that its terms state, on the rows of ``order``.
        data: the client's examples.
        order: rows of every step.
        wanted: the update.
    """

    view: View
    how: LocalTraining
    data: Batch
    order: tuple[Tensor, ...]
    wanted: Mapping[str, Tensor]

    @classmethod
    def of(cls, view: View, inputs: Tensor, labels: Tensor) -> "_Case":
        """The case of a view, with the examples behind it."""
        _, update = view.single(subject=_SUBJECT)
        client = replica(view, subject=_SUBJECT)
        is_gradient = update.kind == "gradient"
        order = (torch.arange(len(inputs)),) if is_gradient else schedule(client)
        kind: Kind = "gradient" if is_gradient else "delta"
        return cls(
            view=view,
            how=replace(LocalTraining.of(view.terms, round=update.round), kind=kind, order=order),
            data=Batch(inputs=inputs, labels=labels),
            order=order,
            wanted=client.sent(),  # as it was sent: of a sum no mean
        )

    def model(self) -> nn.Module:
        """The network as it was received."""
        model = build(self.view.terms.architecture)
        load(model, self.view.single(subject=_SUBJECT)[0].tensors)
        return model

    def error(self, again: Mapping[str, Tensor]) -> float:
        """Of a repetition, relative to the update's norm."""
        return norm(difference(again, self.wanted)) / max(norm(self.wanted), 1e-30)


def _rescaled(seen: View, inputs: Tensor, labels: Tensor, modes: Sequence[Mode]) -> Iterator[Tried]:
    """The stated loss on the same examples as loops scale them; only those that give this very update."""
    agreed = seen.terms.architecture
    if not agreed.inputs.continuous:
        return
    for name, mean, std in _SCALES:
        if isinstance(mean, tuple) and len(mean) != agreed.input_shape[0]:
            continue
        shift, scale = (torch.as_tensor(one, dtype=inputs.dtype) for one in (mean, std))
        if shift.ndim:
            each = -1, *(1 for _ in agreed.input_shape[1:])
            shift, scale = shift.view(each), scale.view(each)
        for mode in modes:
            training = seen.terms.training.model_copy(update={"mode": mode})
            told = replace(seen, terms=replace(seen.terms, training=training))
            error = _repeated(told, (inputs - shift) / scale, labels)
            if error <= REPRODUCED:
                words = name if len(modes) == 1 else f"{name}, mode {mode}"
                yield Tried(words=words, error=error, view=seen, stated=False, reproduced=True)


def _restated(seen: View, inputs: Tensor, labels: Tensor) -> Iterator[Tried]:
    """Terms with one of them changed, as an optimizer or a clip; only those that give this very update."""
    received, update = seen.single(subject=_SUBJECT)
    for words, _, terms in variants(seen.terms):
        # Other terms may take another number of steps.
        sent = update if update.kind == "gradient" else replace(update, steps=terms.steps(update.examples))
        rounds = (RoundView(round=update.round, broadcast=received, updates={update.client: sent}),)
        told = replace(seen, terms=terms, rounds=rounds)
        try:
            error = _repeated(told, inputs, labels)
        except GlasshouseError:
            continue  # it cannot be repeated, so it explains nothing
        if error <= REPRODUCED:
            yield Tried(words=words, error=error, view=told, reproduced=True)


def _multiplied(seen: View, inputs: Tensor, labels: Tensor, modes: Sequence[Mode]) -> Iterator[Tried]:
    """Usual losses times a number, as a loss scale that nobody took off, a count of examples or a clip."""
    for words, view in _ways(seen, labels, modes):
        case = _Case.of(view, inputs, labels)
        again = case.how(case.model(), case.data, rng=Rng.root(0)).tensors
        square = sum(float((t.double() ** 2).sum()) for t in again.values())
        together = sum(float((t.double() * case.wanted[n].double()).sum()) for n, t in again.items())
        factor = together / max(square, 1e-30)
        error = case.error({name: t * factor for name, t in again.items()})
        if error <= REPRODUCED:
            words = f"{words}, times {factor:.6g}: undo what multiplies it, or state the clip (clip_norm)"
            yield Tried(words=words, error=error, view=seen, stated=False, reproduced=True)
            return


def _unstated(seen: View, inputs: Tensor, labels: Tensor, modes: Sequence[Mode]) -> Iterator[Tried]:
    """What no terms can state, each at the rate that fits best, in every mode."""
    for mode in modes:
        training = seen.terms.training.model_copy(update={"mode": mode})
        case = _Case.of(replace(seen, terms=replace(seen.terms, training=training)), inputs, labels)
        for way in ways(case.how.kind):
            rates = dict.fromkeys((seen.terms.learning_rate, *way.rates))
            errors = {
                rate: case.error(repeat(way, case.model(), case.data, case.order, how=case.how, rate=rate))
                for rate in rates
            }
            rate = min(errors, key=lambda one: errors[one])
            words = f"{way.words}, learning rate {rate:g}" if way.optimizer else way.words
            words = words if len(modes) == 1 else f"{words}, mode {mode}"
            reproduced = errors[rate] <= REPRODUCED
            yield Tried(words=words, error=errors[rate], view=seen, stated=False, reproduced=reproduced)


def _modes(seen: View) -> tuple[Mode, ...]:
    """Those in which the network behaves differently."""
    received, _ = seen.single(subject=_SUBJECT)
    model, agreed = build(seen.terms.architecture), seen.terms.architecture
    load(model, received.tensors)
    probes = agreed.inputs.probes(4, torch.Generator().manual_seed(0))
    differs = differs_by_mode(model, probes, seen.terms.training)
    return ("evaluation", "training") if differs else ("evaluation",)


def _ways(seen: View, labels: Tensor | None, modes: Sequence[Mode]) -> Iterator[tuple[str, View]]:
    """What is in use: every loss, in every mode in which the network behaves differently."""
    terms, agreed = seen.terms, seen.terms.architecture
    # Only a scale tells a sum from a mean, and a search without the examples compares directions.
    other: Reduction = "sum" if terms.training.reduction == "mean" else "mean"
    reductions = (terms.training.reduction, other) if labels is not None else (terms.training.reduction,)
    for loss, task in _losses(agreed.task, agreed.classes, labels):
        for mode, reduction in product(modes, reductions):
            training = terms.training.model_copy(update={"mode": mode, "reduction": reduction})
            words = loss if len(modes) == 1 else f"{loss}, mode {mode}"
            words = words if reduction == terms.training.reduction else f"{words}, {_REDUCED[reduction]}"
            told = replace(terms, architecture=replace(agreed, task=task), training=training)
            rounds = tuple(
                replace(one, broadcast=replace(one.broadcast, architecture=told.architecture))
                for one in seen.rounds
            )
            yield words, replace(seen, terms=told, rounds=rounds)


def _losses(own: Task, classes: int, labels: Tensor | None) -> Iterator[tuple[str, Task]]:
    """The stated loss and those that are common, each with its name."""
    every = {words: task for words, _, task in usual_tasks(classes, labels)}
    if own not in every.values():
        yield "the stated loss", own
    yield from every.items()
