"""The input of attacks on text: the model of a round's broadcast, and every answer as a gradient.

Shape letters: R rows of a gradient, D width, H heads, E features per head.
"""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import ClassVar, Protocol, final

import torch
from torch import Tensor, nn

from glasshouse.attacks.base import About
from glasshouse.attacks.parts.local_steps import check_linear, known_decay
from glasshouse.attacks.text.span import SKETCH, Span, span_of, within_reach
from glasshouse.errors import Inapplicable
from glasshouse.limits import check_ranges
from glasshouse.modalities.sentence import Sentence
from glasshouse.models.build import build, load
from glasshouse.models.text.base import ADAPTER, TextModel
from glasshouse.rng import Rng
from glasshouse.tensors import check_finite, device_of
from glasshouse.transcript.view import View
from glasshouse.wire import Aggregate, Architecture, Broadcast, Update


class SentenceAttack(Protocol):
    """Base class of attacks on language models: settings with declared ranges, and no models of images."""

    name: ClassVar[str]

    def __post_init__(self) -> None:
        check_ranges(self, f"attack '{self.name}'")

    def check_model(self, architecture: Architecture) -> None:
        """Refuse models of images."""
        check_sentences(architecture, subject=f"attack '{self.name}'")


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Answer:
    """One client's update, or the sum of a round.

    Attributes:
        about: the round, and the client or (None) the cohort.
        model: the received one, in ``eval()`` mode, parameters without gradient.
        sent: by parameter name: a multiple of the mean gradient over the local steps.
        examples: sentences behind it.
        steps: local steps behind it.
    """

    about: About
    model: TextModel
    sent: Mapping[str, Tensor]
    examples: int
    steps: int


def answers(view: View, *, subject: str) -> Iterator[Answer]:
    """All answers in the rounds of a view: single updates where they are seen, else the sum.

    Raises:
        Inapplicable: not a text model, no parameters are sent, or clients use Adam.
        BadValue: an update is not finite.
    """
    for one in view.rounds:
        models: dict[int, TextModel] = {}  # clients that received the same share it
        messages: list[tuple[int | None, Update | Aggregate]] = [*one.updates.items()]
        if one.aggregate is not None and not one.updates:
            messages = [(None, one.aggregate)]
        for client, message in messages:
            broadcast = one.broadcast if client is None else one.received_by(client)
            gradient = _gradient(view, broadcast, message, subject=subject)
            if id(broadcast) not in models:
                models[id(broadcast)] = text_model(broadcast, subject=subject)
            yield Answer(
                about=About(rounds=(one.round,), client=client),
                model=models[id(broadcast)],
                sent=gradient,
                examples=message.examples,
                steps=message.steps,
            )


def text_model(broadcast: Broadcast, *, subject: str) -> TextModel:
    """The model of a broadcast, with its weights.

    Raises:
        Inapplicable: it is not a text model.
    """
    check_sentences(broadcast.architecture, subject=subject)
    model = build(broadcast.architecture, rng=Rng.root(0))  # initial weights are overwritten
    load(model, broadcast.tensors)
    assert isinstance(model, TextModel)
    return model.to(device_of(broadcast.tensors)).eval().requires_grad_(False)


def check_sentences(architecture: Architecture, *, subject: str) -> None:
    """Refuse models of images."""
    if not isinstance(architecture.inputs, Sentence):
        raise Inapplicable(
            subject,
            needs="a model that reads sentences",
            got=f"'{architecture.name}', which reads images",
            fix="audit a language model (model.name = gpt2), or use an attack on images",
        )


def input_spans(answer: Answer, *, subject: str, needs: str, both: bool) -> tuple[Span | None, Span | None]:
    """Spans of the first two attention layers' inputs; None: nothing of that layer was sent.

    Raises:
        Inapplicable: one block, or nothing was sent of ``both`` layers, or of one of them.
    """
    if len(answer.model.anatomy.blocks) < 2:  # the second block's gradient is needed to order tokens
        raise Inapplicable(
            subject,
            needs="a model of at least 2 blocks",
            got="1",
            fix="audit a deeper model (model.layers = 2), or use embedding_rows",
        )
    with torch.no_grad():
        first, second = (input_span(answer.model, layer, answer.sent) for layer in (0, 1))
    sent = [span for span in (first, second) if span is not None]
    if len(sent) < (2 if both else 1):
        raise Inapplicable(
            subject,
            needs=needs,
            got=", ".join(sorted(answer.sent)[:6]) or "nothing",
            fix="let clients train all layers, or use another attack (glasshouse list attacks)",
        )
    return first, second


def _gradient(
    view: View, broadcast: Broadcast, message: Update | Aggregate, *, subject: str
) -> dict[str, Tensor]:
    """The mean of a message as a gradient, up to scale and sign; in the precision of the model."""
    if message.kind == "logits":
        raise Inapplicable(
            subject, needs="parameters or their gradient", got="logits", fix="use protocol fedsgd or fedavg"
        )
    mean = message.tensors
    if isinstance(message, Aggregate):
        mean = {name: t / message.weight for name, t in mean.items()}
    check_linear(view.terms, subject=subject)
    check_finite(mean, subject=subject)
    before = {name: broadcast.tensors[name] for name in mean}
    decay: Mapping[str, Tensor] = {}
    if message.kind == "delta":
        decay = known_decay(before, view.terms, round=broadcast.round, steps=message.steps)
    moved = {name: t + decay[name] if decay else t for name, t in mean.items()}
    return {name: t.to(before[name].dtype) for name, t in moved.items()}


def input_span(model: TextModel, layer: int, sent: Mapping[str, Tensor]) -> Span | None:
    """The span of a layer's attention inputs; None: nothing of it was sent.

    With an adapter ``B A`` beside a frozen layer, the span is in two gradients: in that of A, which is 0 as
    long as B is, and in that of B, as seen through A.
    """
    rows = model.input_rows(layer, sent)
    span = _known(model, layer, span_of(rows)) if bool(rows.any()) else None
    if span is not None and span.free:
        return span
    module, _ = model.anatomy.blocks[layer].projections()["value"]
    name = next(name for name, one in model.named_modules() if one is module)
    second = f"{name}.{ADAPTER}".replace("lora_A", "lora_B")
    if second not in sent or not bool(sent[second].any()):
        return span
    lens = model.get_parameter(f"{name}.{ADAPTER}").detach()
    return _known(model, layer, span_of(sent[second], lens=lens))


def _known(model: TextModel, layer: int, span: Span) -> Span:
    """The span without unreachable null directions, judged by some tokens; tested only if few are free."""
    if not 0 < span.free <= SKETCH:
        return span
    table = model.anatomy.tokens
    some = torch.linspace(0, table.num_embeddings - 1, 4 * SKETCH, device=table.weight.device).long()
    tokens = torch.stack([some, some.flip(0)], dim=1)
    places = torch.arange(2, device=tokens.device).expand(tokens.shape)
    hidden = model.embed(tokens, places)
    for block in range(layer):
        hidden = model.through(block, hidden, places, torch.ones_like(tokens, dtype=torch.bool))
    return within_reach(span, model.anatomy.blocks[layer].attended(hidden).flatten(0, 1))


def heads_span(model: TextModel, layer: int, sent: Mapping[str, Tensor]) -> Span | None:
    """The span of a layer's concatenated head outputs; None: the layer behind them was not sent.

    That layer, whose input they are, is found by a forward pass.
    """
    block = model.anatomy.blocks[layer]
    table = model.anatomy.tokens.weight
    token = torch.zeros(1, 1, dtype=torch.int64, device=table.device)
    hidden = model.embed(token, token)
    _, _, heads = block.project(block.attended(hidden), token)  # (1, H, 1, E)
    behind: list[tuple[str, nn.Module]] = []

    def note(name: str, module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        weight = getattr(module, "weight", None)
        matrix = isinstance(weight, Tensor) and weight.ndim == 2
        if matrix and torch.equal(inputs[0].flatten(), heads.flatten()):
            behind.append((f"{name}.weight", module))

    with ExitStack() as hooks:
        for name, module in model.named_modules():
            hooks.enter_context(module.register_forward_pre_hook(partial(note, name)))
        block.finish(hidden, heads)
    if not behind or behind[0][0] not in sent:
        return None
    name, module = behind[0]
    return span_of(sent[name] if isinstance(module, nn.Linear) else sent[name].T)
