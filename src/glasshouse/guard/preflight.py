"""Preflight: which of a client's own examples are exposed in its update, checked before it is sent.

A server reads inputs of linear layers from rows of an update, or from differences of two rows, and must guess
which rows those are (attacks.parts.readout). The client need not guess: it has the examples. It compares the
rows of the tensors that it is about to send, after clipping, noise or pruning, with the layer's inputs. An
example is exposed ("stands") in the update if one of the following matches it, at the best scale, with less
than ``RECOGNISED`` of its contrast missing, and would not match without the example's own contribution:

- a row of the weight;
- the sum of the rows that this example dominates, where noise averages out;
- the difference of two rows to which most other examples contribute equally;
- a fixed combination of few rows, of all tensors that read the same input, that was found on other examples
  (:mod:`glasshouse.guard.pursued`).

So are an example's features where it alone fills many columns of a tensor
(:mod:`glasshouse.guard.own_columns`).

The contribution of each example is known from the training itself, if it was recorded
(:mod:`glasshouse.guard.watch`), or from a pass of the examples through the received model (and, after several
steps, through the updated one).

For models of sentences, see :mod:`glasshouse.guard.sentences`: a sentence is exposed in the update by the
first attention layer, or by a fixed combination of rows of any tensor.

The check does not search: what gradient inversion, or a network trained to read updates, would recover is not
covered.
"""

import copy
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Final, final

import torch
from torch import Tensor, nn

from glasshouse.errors import BadValue
from glasshouse.guard.layers.contributions import ORDINARY, Contributions, What, largest
from glasshouse.guard.layers.standing import RECOGNISED, Leak, find_examples
from glasshouse.guard.layers.trace import LayerTrace, trace
from glasshouse.guard.pursued import Memory, Pursued, pursue
from glasshouse.guard.pursuit.examples import Own
from glasshouse.guard.pursuit.states import EVALUATION, TRAINING, in_mode
from glasshouse.guard.rules.finite import not_finite
from glasshouse.guard.sentences import ReadsSentences, SentencePreflight, preflight_sentences
from glasshouse.guard.watch import Watched
from glasshouse.wire import Kind

__all__ = ["RECOGNISED", "Examples", "Leak", "Memory", "Preflight", "preflight"]

_SAME_AS_INPUT: Final = 0.999
"""Correlation from which on a layer's input counts as the model's input, normalised or not."""

_PART: Final = 256  # examples passed at a time
_CONTROLLED: Final = 512  # entries of an example in the controls


@final
@dataclass(frozen=True, kw_only=True)
class Preflight:
    """What is exposed in one update.

    Attributes:
        examples: number of examples behind it.
        leaks: the clearest leak for each exposed example and kind.
        labels: indices of the examples whose class the signs in the head reveal; empty if all classes are
            present or indicated, as the signs then reveal nothing.
        wrong_classes: number of classes that the signs indicate and no example has.
        controlled: the control passed: in an update of a single example, that one was found and no other.
        unseen: trainable tensors that were not checked, as they could not be differentiated, or as each row
            has inputs of its own (convolutions in groups).
        seen: share of the update's numbers that was looked at.
        hidden: those of ``unseen`` whose rows isolate examples once later units complete their read-outs, or
            columns are chosen with them: which examples cannot be told, and no remedy is believed.
        sentences: the result for a model of sentences; None for other models.
    """

    examples: int
    leaks: tuple[Leak, ...]
    labels: tuple[int, ...]
    wrong_classes: int
    controlled: bool
    unseen: tuple[str, ...]
    seen: float = 1.0
    hidden: tuple[str, ...] = ()
    sentences: SentencePreflight | None = None

    @property
    def coverage(self) -> str:
        """What was looked at, in words."""
        names = f"; not looked at: {', '.join(self.unseen)}" if self.unseen else ""
        return f"looked at {math.floor(1000 * self.seen) / 10:g} % of the update{names}"

    def standing(self, what: What) -> tuple[int, ...]:
        """Indices of the examples whose inputs, or features, are exposed in the update."""
        return tuple(dict.fromkeys(leak.example for leak in self.leaks if leak.what == what))

    @property
    def summary(self) -> str:
        """One sentence; three for a model of sentences."""
        if not self.controlled:
            return "Nothing can be said: an update of one of your examples did not show it, or showed others."
        if self.sentences is not None:
            fixed = self._count(len({leak.example for leak in self.leaks if leak.by == "fixed rows"}))
            return f"{self.sentences.summary} Fixed combinations of rows isolate {fixed} of them."
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
    watched: Watched | None = None,
    memory: Memory | None = None,
) -> Preflight:
    """Look for a client's examples in the update that it is about to send.

    Args:
        update: by parameter name, after all defences: a gradient, or the change of the parameters, and of
            running statistics if they are sent.
        model: as received, in the mode in which it is trained; not modified.
        inputs: all examples that the update was computed from, (B, ...), as they enter the model; for a model
            of sentences their tokens, (B, L).
        labels: their classes, (B,).
        kind: ``gradient`` or ``delta``.
        watched: the recorded training (:func:`~glasshouse.guard.watch.watch`): no extra pass is then needed,
            and the contribution of each example in each step is known. Fixed combinations need a pass anyway.
        memory: further own examples, on which fixed combinations are searched (without any, they are searched
            on each half of the examples for the other), and what was sent a round ago.

    Raises:
        BadValue: another kind, no weight of ``model`` in the update, or inputs that do not match it.

    Examples:
        >>> model = nn.Linear(4, 2)
        >>> image, label = torch.tensor([[0.0, 1.0, 0.5, 0.2]]), torch.tensor([1])
        >>> names, weights = zip(*model.named_parameters())
        >>> gradient = torch.autograd.grad(nn.functional.cross_entropy(model(image), label), weights)
        >>> seen = preflight(dict(zip(names, gradient)), model, image, label, kind="gradient")
        >>> seen.standing("input"), seen.standing("features"), seen.labels
        ((0,), (), (0,))
    """
    own = Own(inputs=inputs, targets=labels)
    return Examples.behind(update, model, own, kind=kind, watched=watched, memory=memory).find_in(update)


def _in_range(update: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
    """The update, scaled by a power of two if its numbers are so small or large that their squares vanish."""
    size = max((float(largest(t)) for t in update.values() if t.numel()), default=1.0)
    low, high = ORDINARY
    if low <= size <= high:
        return update
    # Two steps: the power itself may be beyond float32.
    half = 2.0 ** (-math.frexp(size)[1] / 2)
    return {name: t * half * half for name, t in update.items()}


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Examples:
    """A client's examples and their contributions to an update, before defences are applied to it.

    Attributes:
        labels: their classes, (B,).
        kind: of the update.
        layers: contributions to each layer that can be checked.
        head: the last layer, before the output.
        pursued: what the examples add along rows that a server may combine; None in sums.
        controlled: the control passed: in an update of one of them only that one is found.
        sentences: the model and its tokens, for a model of sentences; it has no ``layers``.
    """

    labels: Tensor
    kind: Kind
    layers: tuple[Contributions, ...] = ()
    head: LayerTrace | None = None
    pursued: Pursued | None = None
    controlled: bool = True
    sentences: tuple[nn.Module, Tensor] | None = None

    @classmethod
    def behind(
        cls,
        update: Mapping[str, Tensor],
        model: nn.Module,
        own: Own,
        *,
        kind: Kind,
        watched: Watched | None = None,
        memory: Memory | None = None,
        copies: int = 1,
    ) -> "Examples":
        """The examples behind ``update``: see :func:`preflight`; ``copies``: rotated versions of each."""
        parameters = dict(model.named_parameters())
        inputs, labels = own.inputs, own.targets
        if kind not in ("gradient", "delta") or not any(name in update for name in parameters):
            raise BadValue(
                "check of an update before it is sent",
                needs="a gradient or a change of the model's parameters, by their names",
                got=f"'{kind}' of {', '.join(list(update)[:3]) or 'nothing'}",
                fix="subtract what was received from the parameters that are sent",
            )
        # In the mode in which the client trains: the other one answers to other rows.
        pursued = pursue(in_mode(model, TRAINING if model.training else EVALUATION, own.inputs), own, memory)
        if isinstance(model, ReadsSentences):
            return cls(labels=labels, kind=kind, pursued=pursued, sentences=(model, inputs))
        # What was watched is what happened. To pass the batch through again is exact for one step alone.
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
                    copies=copies,
                )
                for one in traces
                if one.is_flat
            ),
            head=traces[-1],
            pursued=pursued,
            controlled=_control(inputs),
        )

    def find_in(self, update: Mapping[str, Tensor], *, recognised: float = RECOGNISED) -> Preflight:
        """What is exposed in ``update``.

        Raises:
            BadValue: it contains a value that is not finite.
        """
        if broken := not_finite(update):
            raise BadValue(
                "check of an update before it is sent",
                needs="finite numbers",
                got=broken[0],
                fix="do not send it: the model that was received, or the training, overflows",
            )
        if self.sentences is not None:
            return self._in_sentences(update, *self.sentences)
        assert self.head is not None
        # Several rows may show one example: the one that shows most of it stands for all.
        leaks: dict[tuple[int, What], Leak] = {}
        for one in self.layers:
            rows, bias = (update.get(one.trace.named(part)) for part in ("weight", "bias"))
            for leak in () if rows is None else find_examples(rows, one, bias=bias, recognised=recognised):
                key = leak.example, one.what
                leaks[key] = min(leaks.get(key, leak), leak, key=lambda known: known.missing)
        # An input that a single layer shows is not told a second time as a combination of rows.
        named = {leak.example for leak in leaks.values() if leak.what == "input"}
        pursued = [] if self.pursued is None else self.pursued.find_in(_in_range(update))
        fixed = [leak for leak in pursued if leak.example not in named]
        classes = _named_classes(update, self.head, self.labels, self.kind)
        return Preflight(
            examples=len(self.labels),
            leaks=tuple(sorted([*leaks.values(), *fixed], key=lambda leak: (leak.example, leak.what))),
            labels=tuple(i for i, label in enumerate(self.labels.tolist()) if label in classes),
            wrong_classes=len(classes - set(self.labels.tolist())),
            controlled=self.controlled,
            **self._coverage(update),
        )

    def _coverage(self, update: Mapping[str, Tensor]) -> dict[str, Any]:
        unseen = () if self.pursued is None else self.pursued.unseen(update)
        hidden = () if self.pursued is None else self.pursued.hidden(update)
        missed = sum(update[name].numel() for name in unseen)
        seen = 1 - missed / max(1, sum(t.numel() for t in update.values()))
        return {"unseen": unseen, "seen": seen, "hidden": hidden}

    def _in_sentences(self, update: Mapping[str, Tensor], model: nn.Module, tokens: Tensor) -> Preflight:
        """What the first attention layer exposes, and fixed combinations of rows of all tensors."""
        assert isinstance(model, ReadsSentences)
        assert self.pursued is not None
        seen = preflight_sentences(update, model, tokens)
        module, _ = model.anatomy.blocks[0].projections()["value"]
        layer = next(name for name, one in model.named_modules() if one is module)
        rows = tuple(range(seen.rows))
        spanned = [
            Leak(example=i, what="input", layer=layer, by="all rows", missing=0.0, rows=rows)
            for i in seen.standing
        ]
        fixed = [
            leak for leak in self.pursued.find_in(_in_range(update)) if leak.example not in seen.standing
        ]
        return Preflight(
            examples=seen.sentences,
            leaks=(*spanned, *fixed),
            labels=(),
            wrong_classes=0,
            controlled=seen.controlled,
            **self._coverage(update),
            sentences=seen,
        )


def _pass_through(
    update: Mapping[str, Tensor], model: nn.Module, inputs: Tensor, labels: Tensor, kind: Kind
) -> list[LayerTrace]:
    """Traces of the received model; after several steps, output gradients are averaged over both models."""
    before = _trace_linear(model, inputs, labels, kind)
    if kind == "gradient":
        return before
    after = _trace_linear(_moved(model, update), inputs, labels, kind)
    return [replace(a, pulls=(a.pulls + b.pulls) / 2) for a, b in zip(before, after, strict=True)]


def _trace_linear(model: nn.Module, inputs: Tensor, labels: Tensor, kind: Kind) -> list[LayerTrace]:
    """Traces of the linear layers only, if there are any: no gradients are stored for the layers before them.

    Examples of several steps were not one batch, and are passed in parts.
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
    joined = []
    for calls in zip(*traces, strict=True):
        inputs = torch.cat([one.inputs for one in calls])
        pulls = torch.cat([one.pulls * size for one, size in zip(calls, sizes, strict=True)])
        joined.append(LayerTrace(name=calls[0].name, layer=calls[0].layer, inputs=inputs, pulls=pulls))
    return joined


def _is_input(seen: Tensor, inputs: Tensor) -> bool:
    """Whether a layer's input, (B, n), is the model's input up to scale and shift."""
    flat = inputs.flatten(1)
    if seen.shape != flat.shape:
        return False
    scale = largest(seen)  # squares of faint ones vanish
    both = torch.stack([(seen / scale).flatten(), flat.flatten().to(seen)])
    return bool(torch.corrcoef(both)[0, 1].abs() >= _SAME_AS_INPUT)


def _named_classes(update: Mapping[str, Tensor], head: LayerTrace, labels: Tensor, kind: Kind) -> set[int]:
    """The classes that the signs of the head's bias, or of its rows, reveal; empty if all are present."""
    for part in ("bias", "weight"):
        sums = update.get(head.named(part))
        if sums is not None and bool(sums.any()) and len(sums) > int(labels.max()):
            falling = sums.flatten(1).sum(1) if sums.ndim > 1 else sums
            classes = (falling < 0) if kind == "gradient" else (falling > 0)
            certain = bool(classes.all()) or len(set(labels.tolist())) == len(classes)
            return set() if certain else set(classes.nonzero()[:, 0].tolist())
    return set()


def _moved(model: nn.Module, update: Mapping[str, Tensor]) -> nn.Module:
    """A copy of ``model`` with the update applied."""
    after = copy.deepcopy(model)
    with torch.no_grad():
        for name, p in after.named_parameters():
            if name in update:
                p.add_(update[name].to(p))
    return after


def _control(inputs: Tensor) -> bool:
    """Positive control: in the gradient of the first example only, it is found and no other."""
    vectors = inputs[:8].flatten(1).detach().float().cpu()
    vectors = vectors[:, :: max(1, vectors.shape[1] // _CONTROLLED)]
    return _finds_first(vectors.numpy().tobytes(), len(vectors))


@lru_cache(maxsize=16)
def _finds_first(vectors: bytes, count: int) -> bool:
    """The control on float32 vectors; cached, as a client has the same first examples in every round."""
    inputs = torch.frombuffer(bytearray(vectors), dtype=torch.float).reshape(count, -1)
    pulls = torch.zeros(count, 2)
    pulls[0] = torch.tensor([1.0, -0.5])
    layer = nn.Linear(inputs.shape[1], 2, device="meta").to_empty(device="cpu")  # draws no random numbers
    for p in layer.parameters():
        torch.nn.init.zeros_(p)
    one = LayerTrace(name="control", layer=layer, inputs=inputs, pulls=pulls)
    leaks = find_examples(torch.outer(pulls[0], inputs[0]), Contributions.of(one, "input", is_exact=True))
    return [leak.example for leak in leaks] == [0]
