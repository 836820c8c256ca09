"""BERT from `transformers`, built from its configuration: sentence classification by a bidirectional encoder.

Source: Devlin et al. 2019, arXiv:1810.04805.
"""

from dataclasses import dataclass
from typing import Any, final

import torch
from torch import Tensor

from glasshouse.errors import BadValue, not_installed
from glasshouse.modalities.sentence import Sentence
from glasshouse.models.base import published
from glasshouse.models.text.base import Anatomy, Projections, TextModel, whole_layers
from glasshouse.models.text.parts import heads_fit, renamed, text_model, with_adapters
from glasshouse.registry import Card
from glasshouse.tasks.base import Task

try:
    from transformers import BertConfig, BertModel
except ImportError as error:
    raise not_installed("model 'bert'", "transformers", error, extra="text") from error


@final
@dataclass(frozen=True, eq=False)
class BertBlock:
    """One layer of BERT: post-norm, so attention reads its input unnormalised."""

    layer: Any  # transformers' BertLayer

    def attended(self, hidden: Tensor) -> Tensor:
        return hidden

    def project(self, x: Tensor, positions: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        del positions  # they are in the embedding
        own = self.layer.attention.self
        query, key, value = (
            part(x).unflatten(2, (own.num_attention_heads, -1)).transpose(1, 2)
            for part in (own.query, own.key, own.value)
        )
        return query, key, value

    def finish(self, hidden: Tensor, context: Tensor) -> Tensor:
        attended = self.layer.attention.output(context.transpose(1, 2).flatten(2), hidden)
        out: Tensor = self.layer.output(self.layer.intermediate(attended), attended)
        return out

    def projections(self) -> Projections:
        own = self.layer.attention.self
        return whole_layers(own.query, own.key, own.value)


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class BertAnatomy(Anatomy):
    """Normalises the embedding instead of the output; a class is read from the first token."""

    body: Any  # transformers' BertModel

    def place(self, vectors: Tensor, positions: Tensor) -> Tensor:
        """The normalised embedding; all tokens have token type 0."""
        own = self.body.embeddings
        kinds = own.token_type_embeddings(torch.zeros_like(positions))
        placed: Tensor = own.LayerNorm(vectors + kinds + own.position_embeddings(positions))
        return placed

    def pool(self, hidden: Tensor, last: Tensor) -> Tensor:
        del last  # the first token is read
        pooled: Tensor = self.body.pooler(hidden)
        return pooled


@published(renamed("bert.", head={"classifier.weight": "head.weight", "classifier.bias": "head.bias"}))
@Card(
    summary="BERT by transformers: classes of sentences, optional LoRA adapters",
    source="Devlin et al. 2019, arXiv:1810.04805",
    extra="text",
)
def bert(
    inputs: Sentence,
    task: Task,
    *,
    width: int = 768,
    layers: int = 12,
    heads: int = 12,
    positions: int = 512,
    rank: int = 0,
    frozen: str = "",
) -> TextModel:
    """BERT; the defaults are BERT-base's.

    Args:
        inputs: vocabulary and longest sentence.
        task: next token, or one output per sentence; an encoder sees the next token and cannot predict it.
        width: D.
        layers: number of blocks.
        heads: number of attention heads.
        positions: number of position embeddings.
        rank: rank of LoRA adapters of ``query`` and ``value``; only they and the head are trained; 0: no
            adapters, all parameters are trained.
        frozen: ``embeddings``, or empty.

    Raises:
        BadValue: the sizes do not fit each other, or another task.
    """
    heads_fit("bert", width=width, heads=heads, layers=layers, length=inputs.length, positions=positions)
    if len(task.outputs) > 1:
        raise BadValue(
            "model 'bert'",
            needs="a task with one output per sentence",
            got=f"task '{task.name}'",
            fix='set data.task = "classification", or choose gpt2, llama or small_gpt',
        )
    config = BertConfig(
        vocab_size=inputs.vocabulary.size,
        hidden_size=width,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        intermediate_size=4 * width,
        max_position_embeddings=positions,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        pad_token_id=inputs.vocabulary.pad,
    )
    body = with_adapters(BertModel(config), rank=rank, beside=("query", "value"))
    anatomy = BertAnatomy(
        tokens=body.embeddings.word_embeddings,
        positions=body.embeddings.position_embeddings,
        blocks=[BertBlock(layer) for layer in body.encoder.layer],
        causal=False,
        body=body,
    )
    return text_model(body, anatomy, task=task, vocabulary=inputs.vocabulary, frozen=frozen)
