"""GPT-2 from `transformers`, built from its configuration: random weights, or weights from a file.

Source: Radford et al. 2019, "Language Models are Unsupervised Multitask Learners".
"""

from dataclasses import dataclass
from typing import Any, final

from torch import Tensor

from glasshouse.errors import not_installed
from glasshouse.modalities.sentence import Sentence
from glasshouse.models.base import published
from glasshouse.models.text.base import Anatomy, Projections, TextModel, fused_layer
from glasshouse.models.text.parts import heads_fit, renamed, text_model, with_adapters
from glasshouse.registry import Card
from glasshouse.tasks.base import Task

try:
    from transformers import GPT2Config, GPT2Model
except ImportError as error:
    raise not_installed("model 'gpt2'", "transformers", error, extra="text") from error


@final
@dataclass(frozen=True, eq=False)
class Gpt2Block:
    """One layer of GPT-2."""

    layer: Any  # transformers' GPT2Block

    def attended(self, hidden: Tensor) -> Tensor:
        normed: Tensor = self.layer.ln_1(hidden)
        return normed

    def project(self, x: Tensor, positions: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        del positions  # they are in the embedding
        heads = self.layer.attn.num_heads
        query, key, value = self.layer.attn.c_attn(x).unflatten(2, (3, heads, -1)).permute(2, 0, 3, 1, 4)
        return query, key, value

    def finish(self, hidden: Tensor, context: Tensor) -> Tensor:
        hidden = hidden + self.layer.attn.c_proj(context.transpose(1, 2).flatten(2))
        out: Tensor = hidden + self.layer.mlp(self.layer.ln_2(hidden))
        return out

    def projections(self) -> Projections:
        return fused_layer(self.layer.attn.c_attn, self.layer.attn.embed_dim)


@published(renamed("transformer."))
@Card(
    summary="GPT-2 by transformers: next token or class of sentences, optional LoRA adapters",
    source="Radford et al. 2019, Language Models are Unsupervised Multitask Learners",
    extra="text",
)
def gpt2(
    inputs: Sentence,
    task: Task,
    *,
    width: int = 768,
    layers: int = 12,
    heads: int = 12,
    positions: int = 1024,
    rank: int = 0,
    frozen: str = "",
) -> TextModel:
    """GPT-2; the defaults are the small published model (124 million parameters with its own tokenizer).

    Args:
        inputs: vocabulary and longest sentence.
        task: next token, or one output per sentence (read from the last token).
        width: D.
        layers: number of blocks.
        heads: number of attention heads.
        positions: number of position embeddings.
        rank: rank of LoRA adapters of ``c_attn``; only they (and a class head) are trained; 0: no adapters,
            all parameters are trained.
        frozen: ``embeddings``, or empty.

    Raises:
        BadValue: the sizes do not fit each other.
    """
    heads_fit("gpt2", width=width, heads=heads, layers=layers, length=inputs.length, positions=positions)
    config = GPT2Config(
        vocab_size=inputs.vocabulary.size,
        n_positions=positions,
        n_embd=width,
        n_layer=layers,
        n_head=heads,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        bos_token_id=inputs.vocabulary.pad,
        eos_token_id=inputs.vocabulary.pad,
    )
    body = with_adapters(GPT2Model(config), rank=rank, beside=("c_attn",))
    anatomy = Anatomy(
        tokens=body.wte, positions=body.wpe, blocks=[Gpt2Block(layer) for layer in body.h], last=body.ln_f
    )
    return text_model(body, anatomy, task=task, vocabulary=inputs.vocabulary, frozen=frozen)
