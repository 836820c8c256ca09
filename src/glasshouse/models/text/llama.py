"""LLaMA-style models of `transformers`, from their configuration: rotary positions, gated layers.

Source: Touvron et al. 2023, arXiv:2302.13971.
"""

from dataclasses import dataclass
from typing import Any, final

from torch import Tensor, nn

from glasshouse.errors import not_installed
from glasshouse.models.base import published
from glasshouse.models.text.base import Anatomy, Projections, Task, TextModel, whole_layers
from glasshouse.models.text.parts import heads_fit, renamed, text_model, with_adapters
from glasshouse.registry import Card, carded
from glasshouse.tokens.vocabulary import Vocabulary

try:
    from transformers import LlamaConfig, LlamaModel
    from transformers.models.llama.modeling_llama import apply_rotary_pos_emb
except ImportError as error:
    raise not_installed("model 'llama'", "transformers", error, extra="text") from error

FAR = 2**14
"""Positions that a rotary model can tell apart here at most."""


@final
@dataclass(frozen=True, eq=False)
class LlamaBlock:
    """One layer of LLaMA."""

    layer: Any  # transformers' LlamaDecoderLayer
    rotate: Any  # what makes angles of positions

    def attended(self, hidden: Tensor) -> Tensor:
        normed: Tensor = self.layer.input_layernorm(hidden)
        return normed

    def project(self, x: Tensor, positions: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Keys and values of fewer heads are repeated for every query that shares them."""
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
@carded(
    Card(
        summary="LLaMA-style model by transformers: next token or class of sentences, optional LoRA adapters",
        source="Touvron et al. 2023, arXiv:2302.13971",
        extra="text",
    )
)
def llama(
    input_shape: tuple[int],
    classes: int,
    *,
    vocabulary: Vocabulary,
    task: Task = "next",
    width: int = 512,
    layers: int = 4,
    heads: int = 8,
    key_heads: int = 0,
    rank: int = 0,
    frozen: str = "",
) -> TextModel:
    """A decoder with rotary positions; the defaults are a small one.

    Args:
        input_shape: (L,), the longest sentence.
        classes: K; for ``task = "class"``.
        vocabulary: of the tokenizer.
        task: ``next`` (by a head of its own) or ``class`` (read off the last token).
        width: D.
        layers: how many blocks.
        heads: of attention.
        key_heads: of keys and values, a divisor of ``heads``; 0: as many.
        rank: of LoRA adapters beside ``q_proj`` and ``v_proj``; they alone (and a class head) are trained;
            0: all is.
        frozen: ``embeddings``, or nothing.

    Raises:
        BadValue: the numbers do not fit each other.
    """
    heads_fit("llama", width=width, heads=heads, layers=layers, length=input_shape[0], positions=FAR)
    config = LlamaConfig(
        vocab_size=vocabulary.size,
        hidden_size=width,
        intermediate_size=width * 8 // 3,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=key_heads or heads,
        max_position_embeddings=FAR,
        pad_token_id=vocabulary.pad,
    )
    body = with_adapters(LlamaModel(config), rank=rank, beside=("q_proj", "v_proj"))
    head = nn.Linear(width, vocabulary.size, bias=False)
    if rank:
        head.requires_grad_(False)
    anatomy = Anatomy(
        tokens=body.embed_tokens,
        positions=None,
        blocks=[LlamaBlock(layer, body.rotary_emb) for layer in body.layers],
        last=body.norm,
    )
    return text_model(
        body, anatomy, head=head, classes=classes, task=task, vocabulary=vocabulary, frozen=frozen
    )
