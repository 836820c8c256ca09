"""A transformer as an audit sees it: one forward pass for all kinds, cut where an attack looks.

GPT-2, BERT, LLaMA-style models and our own differ in where they normalise, how positions enter and how their
tensors are called. An :class:`Anatomy` says that; everything else, the forward pass included, is written once
in :class:`TextModel`. Attention is computed in its plain form, which can be differentiated twice.

Shape letters: B sentences, L tokens, D width, H heads, V vocabulary, K classes, R rows of a gradient.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal, Protocol, final

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from glasshouse.errors import BadValue
from glasshouse.tokens.vocabulary import Vocabulary

__all__ = [
    "TASKS",
    "Anatomy",
    "Block",
    "Part",
    "Projections",
    "Task",
    "TextModel",
    "TiedHead",
    "attend",
    "fused_layer",
    "whole_layers",
]

Task = Literal["next", "class"]
TASKS: Final = ("next", "class")
Part = Literal["query", "key", "value"]
PARTS: Final[tuple[Part, ...]] = ("query", "key", "value")
Projections = Mapping[Part, tuple[nn.Module, slice]]
"""The layer that computes each part, and its rows among that layer's outputs."""
ADAPTER: Final = "lora_A.default.weight"
"""What peft calls an adapter's first matrix, (rank, D), below the layer that it is beside."""
ADAPTER_MARK: Final = ".lora_"
BASE: Final = ".base_layer."
"""What peft puts into the name of the layer itself."""
EMBEDDINGS: Final = "embeddings"
"""``frozen``: tokens' and positions' vectors are not trained."""


class Block(Protocol):
    """One layer: attention and the network behind it."""

    def attended(self, hidden: Tensor) -> Tensor:
        """What query, key and value are computed from, (B, L, D): in most models ``hidden``, normalised."""
        ...

    def project(self, x: Tensor, positions: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Query, key and value (B, H, L, D / H) of ``x`` (B, L, D) at ``positions`` (B, L)."""
        ...

    def finish(self, hidden: Tensor, context: Tensor) -> Tensor:
        """The layer's output (B, L, D) from its input and the heads' results, (B, H, L, D / H)."""
        ...

    def projections(self) -> Projections:
        """The layer that computes each part, and its rows among that layer's outputs."""
        ...


@dataclass(frozen=True, kw_only=True, eq=False)
class Anatomy:
    """Where the parts of a transformer are; as most have them, unless a kind says otherwise.

    Attributes:
        tokens: the vectors of all tokens, (V, D).
        positions: the vectors of all positions; None of rotary models, where they enter in attention.
        blocks: first to last.
        last: what normalises the output of the last block.
        causal: a token attends to itself and earlier ones alone.
    """

    tokens: nn.Embedding
    positions: nn.Embedding | None
    blocks: Sequence[Block]
    last: nn.Module = field(default_factory=nn.Identity)
    causal: bool = True

    @property
    def rotary(self) -> bool:
        """Positions enter in attention, not in the embedding."""
        return self.positions is None

    def place(self, vectors: Tensor, positions: Tensor) -> Tensor:
        """What enters the first block, (B, L, D), from tokens' vectors and positions (B, L)."""
        return vectors if self.positions is None else vectors + torch.as_tensor(self.positions(positions))

    def close(self, hidden: Tensor) -> Tensor:
        """What leaves the last block, normalised where the model does that, (B, L, D)."""
        return torch.as_tensor(self.last(hidden))

    def pool(self, hidden: Tensor, last: Tensor) -> Tensor:
        """What a class is read off, (B, D); ``last`` (B,): place of the last token of each sentence."""
        return hidden[torch.arange(len(hidden), device=hidden.device), last]


def whole_layers(*layers: nn.Module) -> Projections:
    """The projections of a block with a layer of its own for query, key and value."""
    return {part: (layer, slice(None)) for part, layer in zip(PARTS, layers, strict=True)}


def fused_layer(layer: nn.Module, width: int) -> Projections:
    """The projections of a block with one layer for query, key and value, in this order."""
    return {part: (layer, slice(i * width, (i + 1) * width)) for i, part in enumerate(PARTS)}


@final
class TiedHead(nn.Linear):
    """Logits of the next token by the tokens' own vectors: one parameter, which has one name in the state."""

    def __init__(self, tokens: nn.Embedding) -> None:
        nn.Module.__init__(self)
        self.in_features, self.out_features = tokens.embedding_dim, tokens.num_embeddings
        self.weight = tokens.weight
        self.register_parameter("bias", None)

    def _save_to_state_dict(self, *args: Any, **kwargs: Any) -> None:
        """Nothing: the embedding has it."""

    def _load_from_state_dict(self, *args: Any, **kwargs: Any) -> None:
        """Likewise."""


@final
class TextModel(nn.Module):
    """Sentences (B, L) int64 → logits: of the next token (B, L, V), or of a class (B, K).

    Args:
        body: the network; its tensors are called ``body.…``.
        anatomy: where its parts are.
        head: (…, D) → logits; a :class:`TiedHead` or a linear layer.
        task: what it is trained for: the ``next`` token of every sentence, or the ``class`` of each.
        vocabulary: of its tokens.
        frozen: ``embeddings``: they are not trained; empty: everything is that requires a gradient.
    """

    def __init__(
        self,
        body: nn.Module,
        anatomy: Anatomy,
        head: nn.Module,
        *,
        task: Task,
        vocabulary: Vocabulary,
        frozen: str = "",
    ) -> None:
        super().__init__()
        if task not in TASKS or frozen not in ("", EMBEDDINGS):
            raise BadValue(
                "model of sentences",
                needs=f"task: {' or '.join(TASKS)}; frozen: {EMBEDDINGS}, or nothing",
                got=f"task = {task!r}, frozen = {frozen!r}",
                fix="correct the [model] table",
            )
        self.body = body
        self.head = head
        self.task = task
        self.vocabulary = vocabulary
        self.anatomy = anatomy
        if frozen:
            for table in (anatomy.tokens, anatomy.positions):
                if table is not None:
                    table.requires_grad_(False)

    @property
    def width(self) -> int:
        """D."""
        return self.anatomy.tokens.embedding_dim

    def forward(self, inputs: Tensor) -> Tensor:
        """Logits of the next token (B, L, V), or of a class (B, K)."""
        return self.logits(self.anatomy.tokens(inputs), self.vocabulary.real(inputs))

    def losses(self, inputs: Tensor, labels: Tensor) -> Tensor:
        """What training minimises the mean of, (B,): cross-entropy, a sentence's mean over its tokens."""
        logits = self(inputs)
        if self.task == "class":
            return F.cross_entropy(logits, labels, reduction="none")
        return self.losses_at(logits, inputs)

    def losses_at(self, logits: Tensor, inputs: Tensor) -> Tensor:
        """The mean loss of each sentence (B,) from logits of the next token, (B, L, V)."""
        counts = self.vocabulary.real(inputs)[:, 1:].to(logits.dtype)
        each = F.cross_entropy(logits[:, :-1].transpose(1, 2), inputs[:, 1:], reduction="none")
        return (each * counts).sum(1) / counts.sum(1).clamp_min(1)

    def right(self, inputs: Tensor, labels: Tensor) -> Tensor:
        """How much of each sentence is predicted right, (B,) in [0, 1]: its class, or its tokens' mean."""
        guesses: Tensor = self(inputs).argmax(-1)
        if self.task == "class":
            return (guesses == labels).double()
        counts = self.vocabulary.real(inputs)[:, 1:].double()
        hits = (guesses[:, :-1] == inputs[:, 1:]).double() * counts
        return hits.sum(1) / counts.sum(1).clamp_min(1)

    def logits(self, vectors: Tensor, real: Tensor) -> Tensor:
        """Logits from tokens' vectors (B, L, D), which need not be those of any token.

        Args:
            vectors: of every place, before positions are added.
            real: which places are part of their sentence, (B, L) bool, all before the others.
        """
        positions = torch.arange(vectors.shape[1], device=vectors.device).expand(vectors.shape[:2])
        hidden = self.anatomy.place(vectors, positions)
        for layer in range(len(self.anatomy.blocks)):
            hidden = self.through(layer, hidden, positions, real)
        hidden = self.anatomy.close(hidden)
        if self.task == "class":
            hidden = self.anatomy.pool(hidden, (real.long().sum(1) - 1).clamp_min(0))
        logits: Tensor = self.head(hidden)
        return logits

    def embed(self, tokens: Tensor, positions: Tensor) -> Tensor:
        """What enters the first block, (B, L, D): ``tokens`` (B, L) at ``positions`` (B, L)."""
        return self.anatomy.place(self.anatomy.tokens(tokens), positions)

    def through(self, layer: int, hidden: Tensor, positions: Tensor, real: Tensor) -> Tensor:
        """One block, (B, L, D) → the same."""
        block = self.anatomy.blocks[layer]
        query, key, value = block.project(block.attended(hidden), positions)
        allowed = real[:, None, None, :]
        if self.anatomy.causal:
            allowed = allowed & (positions[:, None, :] <= positions[:, :, None])[:, None]
        return block.finish(hidden, attend(query, key, value, allowed))

    def representation(self, inputs: Tensor) -> Tensor:
        """What leaves the last block, averaged over each sentence's tokens, (B, D)."""
        real = self.vocabulary.real(inputs)
        positions = torch.arange(inputs.shape[1], device=inputs.device).expand(inputs.shape)
        hidden = self.embed(inputs, positions)
        for layer in range(len(self.anatomy.blocks)):
            hidden = self.through(layer, hidden, positions, real)
        weight = real.to(hidden.dtype)
        return (self.anatomy.close(hidden) * weight[..., None]).sum(1) / weight.sum(1, keepdim=True)

    def completed(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """``tensors`` of a published body, with what is this model's own: adapters, and a head where none is.

        Layers with an adapter beside them are found by the name that they have without one.
        """
        own = self.state_dict()
        plain = {name: tensors.get(name.replace(BASE, "."), tensors.get(name)) for name in own}
        ours = {n: t for n, t in own.items() if ADAPTER_MARK in n or n.startswith("head.")}
        stated_tensors = {name: t for name, t in plain.items() if t is not None}
        known = {name.replace(BASE, ".") for name in own}
        return {**{n: t for n, t in tensors.items() if n not in known}, **ours, **stated_tensors}

    def input_rows(
        self, layer: int, tensors: Mapping[str, Tensor], *, parts: Sequence[Part] = PARTS
    ) -> Tensor:
        """The rows of a gradient, or of a change of weights, that lie in the span of a layer's inputs.

        For ``y = W x`` every row of ``∂L/∂W`` is a weighted sum of inputs ``x``: here of
        ``blocks[layer].attended(…)`` at all places of all sentences. Of an adapter ``B A`` beside ``W`` that
        is the gradient of ``A``; it is 0 as long as ``B`` is, as peft starts it.

        Args:
            layer: number of the block.
            tensors: of an update, by name.
            parts: which projections are read. A causal model's first token has no gradient of its query and
                key: it attends to itself alone. An adapter of a fused projection has the same rows for all.

        Returns:
            (R, D), in the order of ``parts``; R = 0 where the update has none of them.
        """
        names = {id(module): name for name, module in self.named_modules()}
        gradients: dict[tuple[str, str], Tensor] = {}
        for part in parts:
            module, rows = self.anatomy.blocks[layer].projections()[part]
            name = names[id(module)]
            for suffix in ("weight", "base_layer.weight"):
                if f"{name}.{suffix}" in tensors:
                    weight = tensors[f"{name}.{suffix}"]
                    turned = weight.T if _inputs_first(module) else weight
                    gradients[f"{name}.{suffix}", part] = turned[rows]
            if f"{name}.{ADAPTER}" in tensors:
                gradients[f"{name}.{ADAPTER}", ""] = tensors[f"{name}.{ADAPTER}"]
        return torch.cat(list(gradients.values())) if gradients else torch.zeros(0, self.width)


def attend(query: Tensor, key: Tensor, value: Tensor, allowed: Tensor) -> Tensor:
    """Softmax attention, (B, H, L, D / H).

    Args:
        query: (B, H, L, D / H).
        key: (B, H, L', D / H).
        value: as ``key``.
        allowed: (B, 1, L or 1, L') bool; who may be attended to.
    """
    scores = query @ key.transpose(2, 3) / query.shape[3] ** 0.5
    blocked = torch.finfo(scores.dtype).min
    weights: Tensor = torch.softmax(scores.masked_fill(~allowed, blocked), dim=3) @ value
    return weights


def _inputs_first(module: nn.Module) -> bool:
    """Whether a layer keeps its weight as (inputs, outputs), as GPT-2's do."""
    base = getattr(module, "base_layer", module)
    return not isinstance(base, nn.Linear)
