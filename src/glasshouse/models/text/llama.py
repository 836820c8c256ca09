"""LLaMA-style models from `transformers`, built from a configuration: rotary positions, gated layers.

Source: Touvron et al. 2023, arXiv:2302.13971.
"""

from dataclasses import dataclass
from typing import Any, final

from torch import Tensor, nn

from glasshouse.errors import not_installed
from glasshouse.modalities.sentence import Sentence
from glasshouse.models.base import published
from glasshouse.models.text.base import Anatomy, Projections, TextModel, whole_layers
from glasshouse.models.text.parts import heads_fit, renamed, text_model, with_adapters
from glasshouse.registry import Card
from glasshouse.tasks.base import Task

try:
    from transformers import LlamaConfig, LlamaModel
    from transformers.models.llama.modeling_llama import apply_rotary_pos_emb
except ImportError as error:
    raise not_installed("model 'llama'", "transformers", error, extra="text") from error

FAR = 2**14
"""Maximal number of positions of a rotary model."""


@final
@dataclass(frozen=True, eq=False)
class LlamaBlock:
    """One layer of LLaMA."""

    layer: Any  # transformers' LlamaDecoderLayer
    rotate: Any  # rotary embedding: positions → angles

    def attended(self, hidden: Tensor) -> Tensor:
        normed: Tensor = self.layer.input_layernorm(hidden)
        return normed

    def project(self, x: Tensor, positions: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Grouped-query attention: keys and values are repeated for every query head that shares them."""
        own = self.layer.self_attn
        query, key, value = (
            part(x).unflatten(2, (-1, own.head_dim)).transpose(1, 2)
            for part in (own.q_proj, own.k_proj, own.v_proj)
        )
        query, key = apply_rotary_pos_emb(query, key, *self.rotate(x, position_ids=positions))
        times = own.num_key_value_groups
        return query, key.repeat_interleave(times, dim=1), value.repeat_interleave(times, dim=1)

    def finish(self, hidden: Tensor, context: Tensor) -> Tensor:
        hidden = hidden + self.layer.self_attn.o_proj(context.transpose(1, 2).flatten(2))
        out: Tensor = hidden + self.layer.mlp(self.layer.post_attention_layernorm(hidden))
        return out

    def projections(self) -> Projections:
        own = self.layer.self_attn
        return whole_layers(own.q_proj, own.k_proj, own.v_proj)


@published(renamed("model.", head={"lm_head.weight": "head.weight", "score.weight": "head.weight"}))
@Card(
    summary="LLaMA-style model by transformers: next token or class of sentences, optional LoRA adapters",
    source="Touvron et al. 2023, arXiv:2302.13971",
    extra="text",
)
def llama(
    inputs: Sentence,
    task: Task,
    *,
    width: int = 512,
    layers: int = 4,
    heads: int = 8,
    key_heads: int = 0,
    rank: int = 0,
    frozen: str = "",
) -> TextModel:
    """A decoder with rotary positions; the defaults are a small one.

    Args:
        inputs: vocabulary and longest sentence.
        task: next token, or one output per sentence (read from the last token); the head is untied.
        width: D.
        layers: number of blocks.
        heads: number of attention heads.
        key_heads: number of key and value heads, a divisor of ``heads``; 0: ``heads``.
        rank: rank of LoRA adapters of ``q_proj`` and ``v_proj``; only they (and a class head) are trained;
            0: no adapters, all parameters are trained.
        frozen: ``embeddings``, or empty.

    Raises:
        BadValue: the sizes do not fit each other.
    """
    heads_fit("llama", width=width, heads=heads, layers=layers, length=inputs.length, positions=FAR)
    config = LlamaConfig(
        vocab_size=inputs.vocabulary.size,
        hidden_size=width,
        intermediate_size=width * 8 // 3,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=key_heads or heads,
        max_position_embeddings=FAR,
        pad_token_id=inputs.vocabulary.pad,
    )
    body = with_adapters(LlamaModel(config), rank=rank, beside=("q_proj", "v_proj"))
    head = nn.Linear(width, inputs.vocabulary.size, bias=False)
    if rank:
        head.requires_grad_(False)
    anatomy = Anatomy(
        tokens=body.embed_tokens,
        positions=None,
        blocks=[LlamaBlock(layer, body.rotary_emb) for layer in body.layers],
        last=body.norm,
    )
    return text_model(body, anatomy, head=head, task=task, vocabulary=inputs.vocabulary, frozen=frozen)
