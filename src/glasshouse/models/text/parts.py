"""Shared by the `transformers` models: peft adapters, and the renaming of tensors in weight files."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from torch import Tensor, nn

from glasshouse.errors import BadValue, not_installed
from glasshouse.models.text.base import Anatomy, TextModel, TiedHead
from glasshouse.tasks.base import Task
from glasshouse.tokens.vocabulary import Vocabulary

try:
    import peft
    import transformers as _transformers  # noqa: F401  # users of this file need both
except ImportError as error:
    raise not_installed("models of transformers", "transformers and peft", error, extra="text") from error


_HEADS: Final = ("lm_head.", "score.", "classifier.", "cls.")
_NO_WEIGHTS: Final = (".attn.bias", ".attn.masked_bias", "position_ids")
"""Suffixes of non-weight tensors in older files: masks and counters."""


def heads_fit(model: str, *, width: int, heads: int, layers: int, length: int, positions: int) -> None:
    """Refuse sizes for which no transformer can be built.

    Raises:
        BadValue: one is below 1, ``width`` is not a multiple of ``heads``, or sentences are too long.
    """
    if min(width, heads, layers, length) < 1 or width % heads or length > positions:
        raise BadValue(
            f"model '{model}'",
            needs=f"width a multiple of heads, layers >= 1, sentences of at most {positions} tokens",
            got=f"width = {width}, heads = {heads}, layers = {layers}, sentences of {length} tokens",
            fix="correct the [model] table, or data.length",
        )


def with_adapters(body: nn.Module, *, rank: int, beside: Sequence[str]) -> Any:
    """Add peft's low-rank adapters to ``body`` and freeze the rest; ``rank`` 0: ``body`` unchanged.

    Args:
        body: changed in place.
        rank: rank of every adapter. The first matrix is initialised at random, the second with 0.
        beside: last components of the names of the layers to adapt.
    """
    if rank:
        config = peft.LoraConfig(
            r=rank,
            lora_alpha=2 * rank,
            target_modules=list(beside),
            fan_in_fan_out=not any(isinstance(m, nn.Linear) for m in _named(body, beside)),
        )
        peft.inject_adapter_in_model(config, body)  # freezes all else
    return body


def _named(body: nn.Module, last: Sequence[str]) -> list[nn.Module]:
    return [m for name, m in body.named_modules() if name.rpartition(".")[2] in last]


def text_model(
    body: nn.Module,
    anatomy: Anatomy,
    *,
    head: nn.Module | None = None,
    task: Task,
    vocabulary: Vocabulary,
    frozen: str,
) -> TextModel:
    """``body`` with the head for its task; ``head`` None: tied to the embedding."""
    width = anatomy.tokens.embedding_dim
    if len(task.outputs) > 1:
        last = head or TiedHead(anatomy.tokens)
    else:
        last = nn.Linear(width, task.outputs[0])
    return TextModel(body, anatomy, last, task=task, vocabulary=vocabulary, frozen=frozen)


def renamed(first: str, *, head: Mapping[str, str] | None = None) -> Callable[[Mapping[str, Tensor]], Any]:
    """A function that renames the tensors of a transformers file to our names.

    Args:
        first: prefix of the body's names in the file; it may be absent.
        head: names of the head's tensors, in the file → here; others are left out.
    """

    def rename(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        if any(name.startswith("body.") for name in tensors):
            return dict(tensors)
        own = {ours: tensors[theirs] for theirs, ours in (head or {}).items() if theirs in tensors}
        inside = {n.removeprefix(first): t for n, t in tensors.items() if not n.startswith(_HEADS)}
        body = {f"body.{n}": t for n, t in inside.items() if not n.endswith(_NO_WEIGHTS)}
        return {**body, **own}

    return rename
