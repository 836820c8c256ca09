"""Transformers under audit: one forward pass for all architectures, split where attacks need access.

GPT-2, BERT, LLaMA-style models and our own differ in where they normalise, how positions enter and how their
tensors are named. An :class:`Anatomy` describes that; everything else, including the forward pass, is in
:class:`TextModel`. Attention is computed in its plain form, which can be differentiated twice.

Shape letters: B sentences, L tokens, D width, H heads, V vocabulary, K classes, R rows of a gradient.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal, Protocol, final

import torch
from torch import Tensor, nn

from glasshouse.errors import BadValue
from glasshouse.tasks.base import Task
from glasshouse.tokens.vocabulary import Vocabulary

Part = Literal["query", "key", "value"]
PARTS: Final[tuple[Part, ...]] = ("query", "key", "value")
Projections = Mapping[Part, tuple[nn.Module, slice]]
"""The layer that computes each part, and its rows among that layer's outputs."""
ADAPTER: Final = "lora_A.default.weight"
"""peft's name of an adapter's first matrix, (rank, D), below the name of the adapted layer."""
ADAPTER_MARK: Final = ".lora_"
BASE: Final = ".base_layer."
"""Inserted by peft into the name of the adapted layer's own weights."""
EMBEDDINGS: Final = "embeddings"
"""Value of ``frozen``: token and position embeddings are not trained."""


class Block(Protocol):
    """One transformer layer: attention and feed-forward network."""

    def attended(self, hidden: Tensor) -> Tensor:
        """The input of query, key and value, (B, L, D): in most models the normalised ``hidden``."""

    def project(self, x: Tensor, positions: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Query, key and value (B, H, L, D / H) of ``x`` (B, L, D) at ``positions`` (B, L)."""

    def finish(self, hidden: Tensor, context: Tensor) -> Tensor:
        """The layer's output (B, L, D) from its input and the heads' outputs, (B, H, L, D / H)."""

    def projections(self) -> Projections:
        """The layer that computes each part, and its rows among that layer's outputs."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Anatomy:
    """The parts of a transformer; subclasses override what differs from most architectures.

    Attributes:
        tokens: token embeddings, (V, D).
        positions: position embeddings; None: rotary positions, which enter in attention.
        blocks: first to last.
        last: normalisation after the last block.
        causal: a token attends only to itself and earlier ones.
    """

    tokens: nn.Embedding
    positions: nn.Embedding | None
    blocks: Sequence[Block]
    last: nn.Module = field(default_factory=nn.Identity)
    causal: bool = True

    @property
    def rotary(self) -> bool:
        """Whether positions enter in attention, not in the embedding."""
        return self.positions is None

    def place(self, vectors: Tensor, positions: Tensor) -> Tensor:
        """The input of the first block, (B, L, D), from token embeddings and positions (B, L)."""
        return vectors if self.positions is None else vectors + torch.as_tensor(self.positions(positions))

    def close(self, hidden: Tensor) -> Tensor:
        """Apply the final normalisation, if the model has one, (B, L, D)."""
        return torch.as_tensor(self.last(hidden))

    def pool(self, hidden: Tensor, last: Tensor) -> Tensor:
        """The input of a class head, (B, D); ``last`` (B,): position of each sentence's last token."""
        return hidden[torch.arange(len(hidden), device=hidden.device), last]


def whole_layers(*layers: nn.Module) -> Projections:
    """The projections of a block with separate layers for query, key and value."""
    return {part: (layer, slice(None)) for part, layer in zip(PARTS, layers, strict=True)}


def fused_layer(layer: nn.Module, width: int) -> Projections:
    """The projections of a block with one fused layer for query, key and value, in this order."""
    return {part: (layer, slice(i * width, (i + 1) * width)) for i, part in enumerate(PARTS)}


@final
class TiedHead(nn.Linear):
    """Next-token logits with weights tied to the token embedding; the shared parameter is saved only once."""

    def __init__(self, tokens: nn.Embedding) -> None:
        nn.Module.__init__(self)
        self.in_features, self.out_features = tokens.embedding_dim, tokens.num_embeddings
        self.weight = tokens.weight
        self.register_parameter("bias", None)

    def _save_to_state_dict(self, *args: Any, **kwargs: Any) -> None:
        """Save nothing: the weight is saved with the embedding."""

    def _load_from_state_dict(self, *args: Any, **kwargs: Any) -> None:
        """Load nothing: the weight is loaded with the embedding."""


@final
class TextModel(nn.Module):
    """Sentences (B, L) int64 → logits: of the next token (B, L, V), or of a class (B, K).

    Args:
        body: the network; its tensors are named ``body.…``.
        anatomy: the parts of ``body``.
        head: (…, D) → logits; a :class:`TiedHead` or a linear layer.
        task: the next token of every position, or one class (or number) per sentence.
        vocabulary: vocabulary of its tokens.
        frozen: ``embeddings``: these are not trained; empty: all parameters that require a gradient are.
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
        if frozen not in ("", EMBEDDINGS):
            raise BadValue(
                "model of sentences",
                needs=f"frozen: {EMBEDDINGS}, or nothing",
                got=f"frozen = {frozen!r}",
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
    def predicts_tokens(self) -> bool:
        """Whether there is an output for every position; else one for the whole sentence."""
        return len(self.task.outputs) > 1

    @property
    def width(self) -> int:
        """D."""
        return self.anatomy.tokens.embedding_dim

    def forward(self, inputs: Tensor) -> Tensor:
        """Logits of the next token (B, L, V), or of a class (B, K)."""
        return self.logits(self.anatomy.tokens(inputs), self.vocabulary.real(inputs))

    def logits(self, vectors: Tensor, real: Tensor) -> Tensor:
        """Logits from arbitrary input vectors (B, L, D), which need not be token embeddings.

        Args:
            vectors: one per position, before positions are added.
            real: which positions belong to their sentence, (B, L) bool; padding comes last.
        """
        hidden = self._hidden(vectors, real)
        if not self.predicts_tokens:
            hidden = self.anatomy.pool(hidden, (real.long().sum(1) - 1).clamp_min(0))
        logits: Tensor = self.head(hidden)
        return logits

    def _hidden(self, vectors: Tensor, real: Tensor) -> Tensor:
        """The output of the last block, normalised, (B, L, D); see :meth:`logits`."""
        positions = torch.arange(vectors.shape[1], device=vectors.device).expand(vectors.shape[:2])
        hidden = self.anatomy.place(vectors, positions)
        for layer in range(len(self.anatomy.blocks)):
            hidden = self.through(layer, hidden, positions, real)
        return self.anatomy.close(hidden)

    def embed(self, tokens: Tensor, positions: Tensor) -> Tensor:
        """The input of the first block, (B, L, D), for ``tokens`` (B, L) at ``positions`` (B, L)."""
        return self.anatomy.place(self.anatomy.tokens(tokens), positions)

    def through(self, layer: int, hidden: Tensor, positions: Tensor, real: Tensor) -> Tensor:
        """Apply one block, (B, L, D) → the same shape."""
        block = self.anatomy.blocks[layer]
        query, key, value = block.project(block.attended(hidden), positions)
        allowed = real[:, None, None, :]
        if self.anatomy.causal:
            allowed = allowed & (positions[:, None, :] <= positions[:, :, None])[:, None]
        return block.finish(hidden, attend(query, key, value, allowed))

    def representation(self, inputs: Tensor) -> Tensor:
        """The output of the last block, averaged over each sentence's tokens, (B, D)."""
        real = self.vocabulary.real(inputs)
        hidden = self._hidden(self.anatomy.tokens(inputs), real)
        weight = real.to(hidden.dtype)
        return (hidden * weight[..., None]).sum(1) / weight.sum(1, keepdim=True)

    def completed(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """``tensors`` of a published body, completed with this model's adapters and, if missing, its head.

        Adapted layers are matched by their names without adapter.
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
        """The rows of a gradient or weight change that lie in the span of a layer's inputs.

        For ``y = W x`` every row of ``∂L/∂W`` is a weighted sum of inputs ``x``: here of
        ``blocks[layer].attended(…)`` at all positions of all sentences. For an adapter ``B A`` of ``W`` these
        are the rows of the gradient of ``A``, which is 0 as long as ``B`` is 0, peft's initial value.

        Args:
            layer: number of the block.
            tensors: tensors of an update, by name.
            parts: projections to read. A causal model's first token has no query or key gradient, because it
                attends only to itself. An adapter of a fused projection has the same rows for all parts.

        Returns:
            (R, D), in the order of ``parts``; R = 0 if the update has none of them.
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
        allowed: (B, 1, L or 1, L') bool; which keys each query may attend to.
    """
    scores = query @ key.transpose(2, 3) / query.shape[3] ** 0.5
    blocked = torch.finfo(scores.dtype).min
    weights: Tensor = torch.softmax(scores.masked_fill(~allowed, blocked), dim=3) @ value
    return weights


def _inputs_first(module: nn.Module) -> bool:
    """Whether a layer stores its weight as (inputs, outputs), as GPT-2 does."""
    base = getattr(module, "base_layer", module)
    return not isinstance(base, nn.Linear)
