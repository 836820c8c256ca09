"""A small GPT that needs no package besides torch.

Source: Radford et al. 2019, "Language Models are Unsupervised Multitask Learners": pre-norm layers, learned
positions, GELU, output tied to the embedding.
"""

from typing import Any, final

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from glasshouse.errors import BadValue
from glasshouse.modalities.sentence import Sentence
from glasshouse.models.text.base import Anatomy, Projections, TextModel, TiedHead, fused_layer
from glasshouse.registry import Card
from glasshouse.tasks.base import Task

_SPREAD = 0.02
"""Standard deviation of the initial embeddings, as in GPT-2."""


@final
class SmallBlock(nn.Module):
    """One layer: a :class:`~glasshouse.models.text.base.Block`."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.before = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.behind = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def attended(self, hidden: Tensor) -> Tensor:
        """The normalised input."""
        x: Tensor = self.before(hidden)
        return x

    def project(self, x: Tensor, positions: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Query, key and value from one fused layer."""
        del positions  # they are in the embedding
        query, key, value = self.qkv(x).unflatten(2, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        return query, key, value

    def finish(self, hidden: Tensor, context: Tensor) -> Tensor:
        """Attention and a two-layer feed-forward network, each with a residual connection."""
        hidden = hidden + self.out(context.transpose(1, 2).flatten(2))
        return hidden + torch.as_tensor(self.down(F.gelu(self.up(self.behind(hidden)))))

    def projections(self) -> Projections:
        """Thirds of one fused layer."""
        return fused_layer(self.qkv, self.qkv.in_features)


@final
class SmallBody(nn.Module):
    """Embeddings, layers and the final normalisation."""

    def __init__(self, *, vocabulary: int, length: int, width: int, layers: int, heads: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.positions = nn.Embedding(length, width)
        self.layers = nn.ModuleList(SmallBlock(width, heads) for _ in range(layers))
        self.last = nn.LayerNorm(width)
        with torch.no_grad():
            for table in (self.tokens, self.positions):
                table.weight.mul_(_SPREAD)


@Card(
    summary="a small GPT: next token or class of sentences, random weights, no extra needed",
    source="Radford et al. 2019, Language Models are Unsupervised Multitask Learners",
)
def small_gpt(
    inputs: Sentence,
    task: Task,
    *,
    width: int = 64,
    layers: int = 2,
    heads: int = 4,
    frozen: str = "",
) -> TextModel:
    """Pre-norm layers, learned positions, output tied to the embedding.

    Args:
        inputs: vocabulary and longest sentence.
        task: next token, or one output per sentence.
        width: D, a multiple of ``heads``.
        layers: number of blocks.
        heads: number of attention heads.
        frozen: ``embeddings``, or empty.

    Raises:
        BadValue: a size is below 1, or ``width`` is not a multiple of ``heads``.

    Examples:
        >>> from glasshouse.tasks.next_token import NextToken
        >>> from glasshouse.tokens.vocabulary import Vocabulary
        >>> words = Vocabulary(size=50, pad=0, end=1)
        >>> task = NextToken(vocabulary=words, length=6)
        >>> model = small_gpt(Sentence(vocabulary=words, length=6), task, width=16)
        >>> tuple(model(torch.tensor([[5, 6, 1, 0, 0, 0]])).shape)
        (1, 6, 50)
    """
    if min(width, layers, heads) < 1 or width % heads:
        raise BadValue(
            "model 'small_gpt'",
            needs="width, layers and heads from 1, width a multiple of heads",
            got=f"width = {width}, layers = {layers}, heads = {heads}",
            fix="correct the [model] table",
        )
    body = SmallBody(
        vocabulary=inputs.vocabulary.size, length=inputs.length, width=width, layers=layers, heads=heads
    )
    head = TiedHead(body.tokens) if len(task.outputs) > 1 else nn.Linear(width, task.outputs[0])
    blocks: Any = body.layers  # a ModuleList loses the element type
    anatomy = Anatomy(tokens=body.tokens, positions=body.positions, blocks=blocks, last=body.last)
    return TextModel(body, anatomy, head, task=task, vocabulary=inputs.vocabulary, frozen=frozen)
