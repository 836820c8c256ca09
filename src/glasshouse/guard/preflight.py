"""What of a client's own examples stands in its update, looked up before the update is sent.

A server reads inputs of linear layers off rows of an update, or off differences of two rows, and must guess
which rows those are (attacks.parts.readout). The client need not guess: it has the examples. It compares the
rows of the very tensors that it is about to send, after clipping, noise or pruning, with what entered the
layer. An example stands in the update if one of these comes so near to it, at the best scale, that less than
``RECOGNISED`` of its contrast is missing, and would not without what the example itself contributed:

- a row of the weight;
- the rows in which it stands alone, added up so that noise averages out;
- the difference of two rows that most other examples enter alike.

What each example contributed is known of the training itself, where that was watched
(:mod:`glasshouse.guard.watch`), or of a pass of the examples through the model as it was received (and, after
several steps, as it is then).

Of a model that reads sentences, see :mod:`glasshouse.guard.sentences`: a sentence that stands in the update
is a leak of the first attention layer.

It does not search: what gradient inversion, or a network trained for the purpose, would read is not covered.
"""

import copy
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Final, final

import torch
from torch import Tensor, nn

from glasshouse.errors import BadValue
from glasshouse.guard.behaviour.trace import LayerTrace, trace
from glasshouse.guard.contributions import Contributions, What, largest
from glasshouse.guard.rules.finite import not_finite
from glasshouse.guard.sentences import ReadsSentences, SentencePreflight, preflight_sentences
from glasshouse.guard.standing import RECOGNISED, Leak, find_examples
from glasshouse.guard.watch import Watched
from glasshouse.wire import Kind

__all__ = ["RECOGNISED", "Examples", "Leak", "Preflight", "preflight"]

_SAME_AS_INPUT: Final = 0.999
"""Correlation from which on what enters a layer is the input itself, normalised or not."""

_PART: Final = 256  # examples passed at a time
_CONTROLLED: Final = 512  # entries of an example in the controls


@final
@dataclass(frozen=True, kw_only=True)
class Preflight:
    """What stands in one update.

    Attributes:
        examples: behind it.
        leaks: one for each example and kind that stands there, the clearest.
        labels: numbers of the examples whose class the head's signs name; none where all classes are held,
            or named: which are, is no secret then.
        wrong_classes: classes that they name and nobody has.
        controlled: in an update of one example of these it was found, and no other.
        unseen: weights that are no linear layer's on vectors: nothing was looked for there.
        sentences: what was looked at where the model reads sentences; None: it reads something else.
    """

    examples: int
    leaks: tuple[Leak, ...]
    labels: tuple[int, ...]
    wrong_classes: int
    controlled: bool
    unseen: tuple[str, ...]
    sentences: SentencePreflight | None = None

    def standing(self, what: What) -> tuple[int, ...]:
        """Numbers of the examples whose inputs, or features, stand in the update."""
        return tuple(leak.example for leak in self.leaks if leak.what == what)

    @property
    def summary(self) -> str:
        """One sentence; two where the model reads sentences."""
        if not self.controlled:
            return "Nothing can be said: an update of one of your examples did not show it, or showed others."
        if self.sentences is not None:
            return self.sentences.summary
        inputs, features = (self._count(len(self.standing(what))) for what in ("input", "features"))
        return (
            f"inputs of {inputs} of your {self.examples} examples, features of {features}, "
            f"labels of {self._count(len(self.labels))} stand in this update (by chance: none)"
        )

    def _count(self, number: int) -> str:
        return {0: "none", self.examples: "all"}.get(number, str(number))


def preflight(
    update: Mapping[str, Tensor],
    model: nn.Module,
    inputs: Tensor,
    labels: Tensor,
    *,
    kind: Kind = "delta",
    recognised: float = RECOGNISED,
    watched: Watched | None = None,
) -> Preflight:
    """Look for a client's examples in the update that it is about to send.

    Args:
        update: by name of the parameter, after all defences: a gradient, or what the parameters changed by.
        model: as received, in the mode in which it is trained; it is left as it was.
        inputs: all examples that the update was computed from, (B, ...), as they enter the model; of a model
            that reads sentences their tokens, (B, L).
        labels: their classes, (B,).
        kind: ``gradient`` or ``delta``.
        recognised: share of an example's contrast that may be missing where it counts as standing there.
        watched: the training (:func:`~glasshouse.guard.watch.watch`): no pass is needed then, and what an
            example added in each step is known.

    Raises:
        BadValue: another kind, no weight of ``model`` in the update, or inputs that do not fit it.

    Examples:
        >>> model = nn.Linear(4, 2)
        >>> image, label = torch.tensor([[0.0, 1.0, 0.5, 0.2]]), torch.tensor([1])
        >>> names, weights = zip(*model.named_parameters())
        >>> gradient = torch.autograd.grad(nn.functional.cross_entropy(model(image), label), weights)
        >>> seen = preflight(dict(zip(names, gradient)), model, image, label, kind="gradient")
        >>> seen.standing("input"), seen.standing("features"), seen.labels
        ((0,), (), (0,))
    """
    return Examples.behind(update, model, inputs, labels, kind=kind, watched=watched).find_in(
        update, recognised=recognised
    )


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Examples:
    """A client's examples, and what they contributed to an update, whatever is then done to it.

    Attributes:
        labels: their classes, (B,).
        kind: of the update.
        layers: contributions to each layer that can be looked at.
        head: the layer in front of the output.
        weights: names of the parameters with several dimensions.
        controlled: in an update of one of them it is found, and no other.
        sentences: the model and its tokens, where it reads sentences; all else is empty then.
    """

    labels: Tensor
    kind: Kind
    layers: tuple[Contributions, ...] = ()
    head: LayerTrace | None = None
    weights: tuple[str, ...] = ()
    controlled: bool = True
    sentences: tuple[nn.Module, Tensor] | None = None

    @classmethod
    def behind(
        cls,
        update: Mapping[str, Tensor],
        model: nn.Module,
        inputs: Tensor,
        labels: Tensor,
        *,
        kind: Kind,
        watched: Watched | None = None,
        with_copies: bool = False,
    ) -> "Examples":
        """Those behind ``update``: see :func:`preflight`; ``with_copies``: some are turned ones of others."""
        parameters = dict(model.named_parameters())
        if kind not in ("gradient", "delta") or not any(name in update for name in parameters):
            raise BadValue(
                "check of an update before it is sent",
                needs="a gradient or a change of the model's parameters, by their names",
                got=f"'{kind}' of {', '.join(list(update)[:3]) or 'nothing'}",
                fix="subtract what was received from the parameters that are sent",
            )
        if isinstance(model, ReadsSentences):
            return cls(labels=labels, kind=kind, sentences=(model, inputs))
        seen = watched.layers(model, inputs) if watched is not None else None
        traces = _pass_through(update, model, inputs, labels, kind) if seen is None else seen
        return cls(
            labels=labels,
            kind=kind,
            layers=tuple(
                Contributions.of(
                    one,
                    "input" if _is_input(one.inputs, inputs) else "features",
                    is_exact=seen is not None or kind == "gradient",
                    with_copies=with_copies,
                )
                for one in traces
                if one.is_flat
            ),
            head=traces[-1],
            weights=tuple(name for name, p in parameters.items() if p.ndim > 1),
            controlled=_control(inputs),
        )

    def find_in(self, update: Mapping[str, Tensor], *, recognised: float = RECOGNISED) -> Preflight:
        """What stands in ``update``.

        Raises:
            BadValue: it holds a number that is not finite.
        """
        if broken := not_finite(update):
            raise BadValue(
                "check of an update before it is sent",
                needs="finite numbers",
                got=broken[0],
                fix="do not send it: the model that was received, or the training, overflows",
            )
        if self.sentences is not None:
            return _of_sentences(update, *self.sentences)
        assert self.head is not None
        leaks: dict[tuple[int, What], Leak] = {}
        for one in self.layers:
            rows, bias = (update.get(one.trace.named(part)) for part in ("weight", "bias"))
            for leak in () if rows is None else find_examples(rows, one, bias=bias, recognised=recognised):
                key = leak.example, one.what
                leaks[key] = min(leaks.get(key, leak), leak, key=lambda known: known.missing)
        classes = _named_classes(update, self.head, self.labels, self.kind)
        looked_at = {one.trace.named("weight") for one in self.layers}
        return Preflight(
            examples=len(self.labels),
            leaks=tuple(sorted(leaks.values(), key=lambda leak: (leak.example, leak.what))),
            labels=tuple(i for i, label in enumerate(self.labels.tolist()) if label in classes),
            wrong_classes=len(classes - set(self.labels.tolist())),
            controlled=self.controlled,
            unseen=tuple(name for name in self.weights if name in update and name not in looked_at),
        )


def _pass_through(
    update: Mapping[str, Tensor], model: nn.Module, inputs: Tensor, labels: Tensor, kind: Kind
) -> list[LayerTrace]:
    """Traces of the model as received; after several steps pulls are the mean of those before and after."""
    before = _trace_linear(model, inputs, labels, kind)
    if kind == "gradient":
        return before
    after = _trace_linear(_moved(model, update), inputs, labels, kind)
    return [replace(a, pulls=(a.pulls + b.pulls) / 2) for a, b in zip(before, after, strict=True)]


def _of_sentences(update: Mapping[str, Tensor], model: nn.Module, tokens: Tensor) -> Preflight:
    """What stands in the first attention layer; the other weights were not looked at."""
    assert isinstance(model, ReadsSentences)
    seen = preflight_sentences(update, model, tokens)
    module, _ = model.anatomy.blocks[0].projections()["value"]
    layer = next(name for name, one in model.named_modules() if one is module)
    return Preflight(
        examples=seen.sentences,
        leaks=tuple(
            Leak(
                example=i, what="input", layer=layer, by="all rows", missing=0.0, rows=tuple(range(seen.rows))
            )
            for i in seen.standing
        ),
        labels=(),
        wrong_classes=0,
        controlled=seen.controlled,
        unseen=tuple(
            n for n, p in model.named_parameters() if p.ndim > 1 and n in update and not n.startswith(layer)
        ),
        sentences=seen,
    )


def _trace_linear(model: nn.Module, inputs: Tensor, labels: Tensor, kind: Kind) -> list[LayerTrace]:
    """Traces of the linear layers alone, if there are any: nothing is kept of what lies in front of them.

    Examples behind several steps were never one batch, and are passed in parts.
    """
    work = copy.deepcopy(model)
    linear = [layer for layer in work.modules() if isinstance(layer, nn.Linear)]
    for p in work.parameters() if linear else ():
        p.requires_grad = False
    for layer in linear:
        layer.requires_grad_()
    parts = 1 if kind == "gradient" else math.ceil(len(labels) / _PART)
    split = zip(inputs.tensor_split(parts), labels.tensor_split(parts), strict=True)
    traces = [trace(work, *some) for some in split]
    sizes = [len(layers[0].inputs) / len(labels) for layers in traces]
    return [
        LayerTrace(
            name=calls[0].name,
            layer=calls[0].layer,
            inputs=torch.cat([one.inputs for one in calls]),
            pulls=torch.cat([one.pulls * size for one, size in zip(calls, sizes, strict=True)]),
        )
        for calls in zip(*traces, strict=True)
    ]


def _is_input(seen: Tensor, inputs: Tensor) -> bool:
    """Whether what enters a layer, (B, n), is the input itself up to scale and shift."""
    flat = inputs.flatten(1)
    if seen.shape != flat.shape:
        return False
    scale = largest(seen)  # squares of faint ones vanish
    both = torch.stack([(seen / scale).flatten(), flat.flatten().to(seen)])
    return bool(torch.corrcoef(both)[0, 1].abs() >= _SAME_AS_INPUT)


def _named_classes(update: Mapping[str, Tensor], head: LayerTrace, labels: Tensor, kind: Kind) -> set[int]:
    """The classes that the signs of the head's bias, or of its rows, call present; none if all are."""
    for part in ("bias", "weight"):
        sums = update.get(head.named(part))
        if sums is not None and bool(sums.any()) and len(sums) > int(labels.max()):
            falling = sums.flatten(1).sum(1) if sums.ndim > 1 else sums
            classes = (falling < 0) if kind == "gradient" else (falling > 0)
            certain = bool(classes.all()) or len(set(labels.tolist())) == len(classes)
            return set() if certain else set(classes.nonzero()[:, 0].tolist())
    return set()


def _moved(model: nn.Module, update: Mapping[str, Tensor]) -> nn.Module:
    """A copy of ``model`` after the update."""
    after = copy.deepcopy(model)
    with torch.no_grad():
        for name, p in after.named_parameters():
            if name in update:
                p.add_(update[name].to(p))
    return after


def _control(inputs: Tensor) -> bool:
    """In the gradient of the first example alone it is found, and none of the others is."""
    vectors = inputs[:8].flatten(1).detach().float().cpu()
    vectors = vectors[:, :: max(1, vectors.shape[1] // _CONTROLLED)]
    return _finds_first(vectors.numpy().tobytes(), len(vectors))


@lru_cache(maxsize=16)
def _finds_first(vectors: bytes, count: int) -> bool:
    """The same of vectors in float32; a client has the same first examples in every round."""
    inputs = torch.frombuffer(bytearray(vectors), dtype=torch.float).reshape(count, -1)
    pulls = torch.zeros(count, 2)
    pulls[0] = torch.tensor([1.0, -0.5])
    layer = nn.Linear(inputs.shape[1], 2, device="meta").to_empty(device="cpu")  # draws no random numbers
    for p in layer.parameters():
        torch.nn.init.zeros_(p)
    one = LayerTrace(name="control", layer=layer, inputs=inputs, pulls=pulls)
    leaks = find_examples(torch.outer(pulls[0], inputs[0]), Contributions.of(one, "input", is_exact=True))
    return [leak.example for leak in leaks] == [0]
