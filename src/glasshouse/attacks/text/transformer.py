"""The embedding and the blocks of GPT-2, LLaMA and BERT, read from a model's tensors, for many sequences that share a start.

A decoder's output at a position depends on earlier positions only. So the keys and values of a prefix are kept, and of a new
token only its own row is computed: for every pair of a prefix and a token that could follow, as ``prefixes`` needs it.

Shape letters: V vocabulary, H features, P prefixes, C candidate tokens, N pairs of both, T positions before the new token, A heads, E features
per head.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol, final

import torch
from torch import Tensor
from torch.nn import functional as F

__all__ = ["Block", "Embedding", "Norm", "Past", "Transformer", "read"]


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Norm:
    """Layer normalisation; without its centre and shift that of LLaMA."""

    weight: Tensor
    bias: Tensor | None
    eps: float

    def __call__(self, x: Tensor) -> Tensor:
        if self.bias is None:
            return x * (x.square().mean(-1, keepdim=True) + self.eps).rsqrt() * self.weight
        return F.layer_norm(x, x.shape[-1:], self.weight, self.bias, self.eps)


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Embedding:
    """What a token is at a position, before the first block.

    Attributes:
        tokens: (V, H).
        positions: (positions, H); None: rotary models, which add none.
        norm: what stands before the first attention layer.
        after: the norm is part of the embedding (BERT): the first block sees its output.
    """

    tokens: Tensor
    positions: Tensor | None
    norm: Norm
    after: bool = False

    def __call__(self, tokens: Tensor, position: int | Tensor) -> Tensor:
        """What the first block receives for these tokens: (..., H)."""
        rows = self.tokens[tokens]
        if self.positions is not None:
            rows = rows + self.positions[position]
        return self.norm(rows) if self.after else rows

    def attended(self, tokens: Tensor, position: int | Tensor) -> Tensor:
        """What the first attention layer receives for these tokens: (..., H)."""
        rows = self(tokens, position)
        return rows if self.after else self.norm(rows)


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Past:
    """Keys and values of prefixes: (P, A, T, E) each."""

    keys: Tensor
    values: Tensor

    def grow(self, rows: Tensor, keys: Tensor, values: Tensor) -> "Past":
        """The prefixes of these rows (P',), one token longer: keys and values (P', A, E)."""
        return Past(
            keys=torch.cat([self.keys[rows], keys[:, :, None]], dim=2),
            values=torch.cat([self.values[rows], values[:, :, None]], dim=2),
        )


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Block:
    """One block: attention and a network of two layers, each with a residual connection.

    Attributes:
        norms: before attention and network; BERT's (``after``) stand behind them.
        heads: of queries, and of keys and values.
        query: weight (out, in) and bias of each projection; ``up`` has two weights where its product is gated.
        rotary: base of rotary positions; None: none.
    """

    norms: tuple[Norm, Norm]
    heads: tuple[int, int]
    query: "Linear"
    key: "Linear"
    value: "Linear"
    out: "Linear"
    up: "Linear"
    gate: "Linear | None"
    down: "Linear"
    activation: str
    rotary: float | None = None
    after: bool = False

    def project(self, seen: Tensor, position: int | Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries (..., A, E), and keys and values, repeated to as many heads, of rows (..., H) at a position."""
        many, few = self.heads
        split = [
            layer(seen).unflatten(-1, (n, -1))
            for layer, n in ((self.query, many), (self.key, few), (self.value, few))
        ]
        query, key, value = split
        if self.rotary is not None:
            query, key = (_rotate(x, position, self.rotary) for x in (query, key))
        if few != many:
            key, value = (x.repeat_interleave(many // few, dim=-2) for x in (key, value))
        return query, key, value

    def attend(self, projected: tuple[Tensor, Tensor, Tensor], past: Past) -> Tensor:
        """What C tokens (C, A, E) find behind each of P prefixes, and at themselves: (P, C, H)."""
        query, key, value = projected
        scale = 1 / math.sqrt(query.shape[-1])
        before = torch.einsum("cae,pate->pcat", query, past.keys)
        own = (query * key).sum(-1).expand(len(past.keys), -1, -1)
        weights = torch.cat([before, own[..., None]], dim=-1).mul(scale).softmax(-1)
        found = torch.einsum("pcat,pate->pcae", weights[..., :-1], past.values)
        return (found + weights[..., -1:] * value).flatten(-2)

    def middle(self, hidden: Tensor, found: Tensor) -> tuple[Tensor, Tensor]:
        """After attention: the residual stream (..., H), and what the network receives (..., H)."""
        stream = hidden + self.out(found)
        seen = self.norms[1 if not self.after else 0](stream)
        return (seen if self.after else stream), seen

    def finish(self, stream: Tensor, seen: Tensor) -> Tensor:
        """The block's output (..., H)."""
        inner = self.up(seen)
        if self.gate is not None:
            inner = inner * F.silu(self.gate(seen))
        else:
            inner = F.gelu(inner, approximate="tanh" if self.activation == "gelu_new" else "none")
        output = stream + self.down(inner)
        return self.norms[1](output) if self.after else output

    def whole(self, hidden: Tensor) -> Tensor:
        """The output for whole sequences (N, T, H), in which every position attends to all: for encoders."""
        query, key, value = (x.transpose(1, 2) for x in self.project(hidden, 0))
        found = F.scaled_dot_product_attention(query, key, value).transpose(1, 2).flatten(-2)
        return self.finish(*self.middle(hidden, found))


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Linear:
    """``x Wᵀ + b``."""

    weight: Tensor
    bias: Tensor | None

    def __call__(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight, self.bias)


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Transformer:
    """What the attacks on text need of a model.

    Attributes:
        embedding: before the first block.
        block: the first one.
        next_norm: before the second block's attention; None: nothing stands there (BERT).
        layers: names of the linear layers, by their place: ``attention`` and ``next`` (several, or one that is fused), ``out`` and
            ``up`` of the first block.
        transposed: weights are stored (in, out).
        causal: a position sees only earlier ones.
    """

    embedding: Embedding
    block: Block
    next_norm: Norm | None
    layers: Mapping[str, tuple[str, ...]]
    transposed: bool
    causal: bool

    def rows(self, place: str, gradient: Mapping[str, Tensor]) -> Tensor | None:
        """The gradient of the layers at a place, (M, H), all of which saw the same inputs; None: not sent."""
        parts = [gradient[f"{name}.weight"] for name in self.layers[place] if f"{name}.weight" in gradient]
        if not parts:
            return None
        return torch.cat([part.T if self.transposed else part for part in parts])

    def following(self, hidden: Tensor) -> Tensor:
        """What the second block's attention receives: (..., H)."""
        return hidden if self.next_norm is None else self.next_norm(hidden)


class Settings(Protocol):
    """What a configuration of ``transformers`` says, as far as it is needed here."""

    model_type: str
    num_attention_heads: int


def _rotate(x: Tensor, position: int | Tensor, base: float) -> Tensor:
    """Rotary positions as LLaMA has them: halves of a head are the two coordinates."""
    half = x.shape[-1] // 2
    speeds = base ** (-torch.arange(half, dtype=torch.float32, device=x.device) / half)
    angles = torch.as_tensor(position, device=x.device)[..., None].float() * speeds
    if angles.dim() > 1:
        angles = angles[..., None, :]
    cos, sin = angles.cos(), angles.sin()
    first, second = x[..., :half], x[..., half:]
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)


def read(config: Mapping[str, object], tensors: Mapping[str, Tensor]) -> Transformer:
    """The parts of a model of ``transformers`` from its configuration (``to_dict()``) and tensors by name.

    Raises:
        KeyError: of another family than GPT-2, LLaMA and BERT, or a tensor is missing.
    """
    return FAMILIES[str(config["model_type"])](config, tensors)


def _prefix(tensors: Mapping[str, Tensor], ending: str) -> str:
    """What stands before a tensor's own name, as tasks and wrappers add to it."""
    for name in tensors:
        if re.search(rf"(^|\.){re.escape(ending)}$", name):
            return name.removesuffix(ending)
    raise KeyError(ending)


def _linear(tensors: Mapping[str, Tensor], name: str) -> Linear:
    return Linear(weight=tensors[f"{name}.weight"], bias=tensors.get(f"{name}.bias"))


def _norm(tensors: Mapping[str, Tensor], name: str, eps: object) -> Norm:
    return Norm(weight=tensors[f"{name}.weight"], bias=tensors.get(f"{name}.bias"), eps=float(str(eps)))


def _gpt2(config: Mapping[str, object], tensors: Mapping[str, Tensor]) -> Transformer:
    root = _prefix(tensors, "wte.weight")
    eps, heads = config["layer_norm_epsilon"], int(str(config["n_head"]))
    turned = {
        name: value.T if value.dim() == 2 else value
        for name, value in tensors.items()
        if f"{root}h.0." in name
    }
    fused = _linear(turned, f"{root}h.0.attn.c_attn")
    biases = (None,) * 3 if fused.bias is None else fused.bias.chunk(3)
    query, key, value = (Linear(weight=w, bias=b) for w, b in zip(fused.weight.chunk(3), biases, strict=True))
    norms = (_norm(tensors, f"{root}h.0.ln_1", eps), _norm(tensors, f"{root}h.0.ln_2", eps))
    return Transformer(
        embedding=Embedding(
            tokens=tensors[f"{root}wte.weight"], positions=tensors[f"{root}wpe.weight"], norm=norms[0]
        ),
        block=Block(
            norms=norms,
            heads=(heads, heads),
            query=query,
            key=key,
            value=value,
            out=_linear(turned, f"{root}h.0.attn.c_proj"),
            up=_linear(turned, f"{root}h.0.mlp.c_fc"),
            gate=None,
            down=_linear(turned, f"{root}h.0.mlp.c_proj"),
            activation=str(config["activation_function"]),
        ),
        next_norm=_norm(tensors, f"{root}h.1.ln_1", eps),
        layers={
            "attention": (f"{root}h.0.attn.c_attn",),
            "out": (f"{root}h.0.attn.c_proj",),
            "up": (f"{root}h.0.mlp.c_fc",),
            "next": (f"{root}h.1.attn.c_attn",),
        },
        transposed=True,
        causal=True,
    )


def _llama(config: Mapping[str, object], tensors: Mapping[str, Tensor]) -> Transformer:
    root = _prefix(tensors, "embed_tokens.weight")
    first, second = f"{root}layers.0.", f"{root}layers.1."
    eps = config["rms_norm_eps"]
    norms = (
        _norm(tensors, f"{first}input_layernorm", eps),
        _norm(tensors, f"{first}post_attention_layernorm", eps),
    )
    return Transformer(
        embedding=Embedding(tokens=tensors[f"{root}embed_tokens.weight"], positions=None, norm=norms[0]),
        block=Block(
            norms=norms,
            heads=(int(str(config["num_attention_heads"])), int(str(config["num_key_value_heads"]))),
            query=_linear(tensors, f"{first}self_attn.q_proj"),
            key=_linear(tensors, f"{first}self_attn.k_proj"),
            value=_linear(tensors, f"{first}self_attn.v_proj"),
            out=_linear(tensors, f"{first}self_attn.o_proj"),
            up=_linear(tensors, f"{first}mlp.up_proj"),
            gate=_linear(tensors, f"{first}mlp.gate_proj"),
            down=_linear(tensors, f"{first}mlp.down_proj"),
            activation="silu",
            rotary=_rotary_base(config),
        ),
        next_norm=_norm(tensors, f"{second}input_layernorm", eps),
        layers={
            "attention": tuple(f"{first}self_attn.{x}_proj" for x in "qkv"),
            "out": (f"{first}self_attn.o_proj",),
            "up": (f"{first}mlp.gate_proj", f"{first}mlp.up_proj"),
            "next": tuple(f"{second}self_attn.{x}_proj" for x in "qkv"),
        },
        transposed=False,
        causal=True,
    )


def _rotary_base(config: Mapping[str, object]) -> float:
    """Versions of ``transformers`` before 5 have it at the top, later ones in a table."""
    table = config.get("rope_parameters")
    inside = table.get("rope_theta") if isinstance(table, Mapping) else None
    return float(str(config.get("rope_theta") or inside or 10_000.0))


def _bert(config: Mapping[str, object], tensors: Mapping[str, Tensor]) -> Transformer:
    root = _prefix(tensors, "embeddings.word_embeddings.weight")
    first, second = f"{root}encoder.layer.0.", f"{root}encoder.layer.1."
    eps, heads = config["layer_norm_eps"], int(str(config["num_attention_heads"]))
    positions = tensors[f"{root}embeddings.position_embeddings.weight"]
    kinds = tensors[f"{root}embeddings.token_type_embeddings.weight"]
    attention = f"{first}attention.self."
    return Transformer(
        embedding=Embedding(
            tokens=tensors[f"{root}embeddings.word_embeddings.weight"],
            positions=positions + kinds[0],
            norm=_norm(tensors, f"{root}embeddings.LayerNorm", eps),
            after=True,
        ),
        block=Block(
            norms=(
                _norm(tensors, f"{first}attention.output.LayerNorm", eps),
                _norm(tensors, f"{first}output.LayerNorm", eps),
            ),
            heads=(heads, heads),
            query=_linear(tensors, f"{attention}query"),
            key=_linear(tensors, f"{attention}key"),
            value=_linear(tensors, f"{attention}value"),
            out=_linear(tensors, f"{first}attention.output.dense"),
            up=_linear(tensors, f"{first}intermediate.dense"),
            gate=None,
            down=_linear(tensors, f"{first}output.dense"),
            activation=str(config["hidden_act"]),
            after=True,
        ),
        next_norm=None,
        layers={
            "attention": tuple(f"{attention}{x}" for x in ("query", "key", "value")),
            "out": (f"{first}attention.output.dense",),
            "up": (f"{first}intermediate.dense",),
            "next": tuple(f"{second}attention.self.{x}" for x in ("query", "key", "value")),
        },
        transposed=False,
        causal=False,
    )


FAMILIES = {"gpt2": _gpt2, "llama": _llama, "bert": _bert}
"""By ``model_type``."""
