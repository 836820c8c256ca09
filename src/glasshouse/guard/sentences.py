"""Which of a client's own sentences are exposed in the update of a language model, checked before sending.

Every row of the gradient of an attention layer's projections is a weighted sum of the layer's inputs at the
client's token positions (DAGER, Petrov et al. 2024, arXiv:2405.15586). While there are fewer positions than
the layer's width, the span of these rows reveals the tokens: a server tests every token of the vocabulary.
The client need not search: it knows its tokens and their number. A token is exposed ("stands") in the update
if its distance to the span of the largest directions, as many as there are tokens, is less than half that of
the nearest of many tokens that do not occur. This applies after clipping, noise or pruning as well. Where
there are as many distinct tokens as the layer is wide, the span is the whole space and reveals nothing.

Only the first layer is checked, where a server begins. Its next step (the order of the tokens, from the
second layer) is not tested: a sentence counts if all its tokens are exposed, at their positions where the
embedding contains positions.

Shape letters: B sentences, L tokens, D width, R rows, T positions.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol, final, runtime_checkable

import torch
from torch import Tensor

from glasshouse.errors import BadValue
from glasshouse.tokens.vocabulary import Vocabulary

__all__ = ["ReadsSentences", "SentencePreflight", "preflight_sentences"]

STRANGERS: Final = 200
"""Number of tokens that do not occur ("strangers"), used for comparison at every position."""
NEARER: Final = 0.5
"""A token is exposed if its distance to the span is below this share of the nearest stranger's."""


@runtime_checkable
class ReadsSentences(Protocol):
    """The required interface of a model: see :class:`glasshouse.models.text.base.TextModel`."""

    vocabulary: Vocabulary
    anatomy: Any

    @property
    def predicts_tokens(self) -> bool:
        """Whether there is an output for every position."""

    def embed(self, tokens: Tensor, positions: Tensor) -> Tensor:
        """Inputs of the first layer, (B, L, D)."""

    def input_rows(self, layer: int, tensors: Mapping[str, Tensor]) -> Tensor:
        """Rows of the update in the span of a layer's inputs, (R, D)."""


@final
@dataclass(frozen=True, kw_only=True)
class SentencePreflight:
    """What is exposed in one update.

    Attributes:
        sentences: number of sentences behind it.
        width: D of the first attention layer.
        rows: number of rows of the update that were checked; 0: nothing of that layer is sent.
        tokens: distinct tokens (at distinct positions) with a loss.
        rank: dimensions that these tokens can span in the rows that are sent.
        standing: indices of the sentences whose tokens are all exposed.
        seen: share of all tokens that are exposed.
        full_at: number of similar sentences in one update, of one batch or of accumulated batches, from which
            on the span is the whole space; 0: not known.
        controlled: the control passed: in mixtures of the layer's inputs of one sentence, that sentence was
            found, and tokens that do not occur were not.
    """

    sentences: int
    width: int
    rows: int
    tokens: int
    rank: int
    standing: tuple[int, ...]
    seen: float
    full_at: int
    controlled: bool

    @property
    def summary(self) -> str:
        """Two sentences for the person at the client."""
        if not self.rows:
            return "Nothing of the first attention layer is sent, so nothing was looked for there."
        stand = {0: "none", self.sentences: "all"}.get(len(self.standing), str(len(self.standing)))
        space = "leaves room" if self.rank < self.width else "leaves no room"
        return (
            f"The first attention layer's gradient has rank {self.rank} of {self.width}, which {space} to "
            f"tell words that you used from others: {stand} of your {self.sentences} sentences stand in it "
            f"word by word. From about {self.full_at} sentences like yours in one update (a batch, or "
            "batches accumulated before anything is sent) it would say nothing."
        )


def preflight_sentences(
    update: Mapping[str, Tensor], model: ReadsSentences, inputs: Tensor
) -> SentencePreflight:
    """Look for a client's sentences in the update that it is about to send.

    Args:
        update: by parameter name, after all defences: a gradient, or the change of the parameters.
        model: as received.
        inputs: tokens of all sentences behind the update, (B, L).

    Raises:
        BadValue: no sentences, or tokens that are not in the vocabulary.
    """
    words = model.vocabulary
    if inputs.ndim != 2 or not len(inputs) or int(inputs.min()) < 0 or int(inputs.max()) >= words.size:
        raise BadValue(
            "preflight of sentences",
            needs=f"tokens (B, L) below {words.size}, B > 0",
            got=f"{tuple(inputs.shape)} of {inputs.dtype}",
            fix="give the sentences as they entered the model",
        )
    real = words.real(inputs)
    if model.anatomy.causal and model.predicts_tokens:
        real = real & real.roll(-1, 1)  # the last token of a sentence has no next one, and so no loss
        real[:, -1] = False
    with torch.no_grad():
        return _look(model.input_rows(0, update).double(), model, inputs, real)


def _look(rows: Tensor, model: ReadsSentences, inputs: Tensor, real: Tensor) -> SentencePreflight:
    places = torch.arange(inputs.shape[1], device=inputs.device).expand(inputs.shape)
    # With learned positions, a token at another place is another input; rotary ones leave it the same.
    kinds = inputs if model.anatomy.rotary else inputs * inputs.shape[1] + places
    tokens = len(torch.unique(kinds[real]))
    width = rows.shape[1]
    rank = min(tokens, len(rows), width)
    exposed = _stand(rows, rank, model, inputs, real)
    standing = [i for i in range(len(inputs)) if bool(real[i].any()) and bool((exposed | ~real)[i].all())]
    each, limit = tokens / len(inputs), min(len(rows), width)
    return SentencePreflight(
        sentences=len(inputs),
        width=width,
        rows=len(rows),
        tokens=tokens,
        rank=rank,
        standing=tuple(standing),
        seen=float(exposed.sum() / real.sum().clamp_min(1)),
        full_at=math.ceil(limit / each) if each else 0,
        controlled=_control(model, inputs, real),
    )


def _stand(rows: Tensor, rank: int, model: ReadsSentences, inputs: Tensor, real: Tensor) -> Tensor:
    """Which tokens (B, L) are exposed in the span of the ``rank`` largest directions of rows (R, D)."""
    if not rank:
        return torch.zeros_like(real)
    basis = torch.linalg.svd(rows, full_matrices=False)[2][:rank]
    places = torch.arange(inputs.shape[1], device=inputs.device).expand(inputs.shape)
    own = _far(model, inputs, places, basis)
    nearest = _nearest_strangers(model, inputs, basis)
    return (own < NEARER * nearest[None]) & real


def _control(model: ReadsSentences, inputs: Tensor, real: Tensor) -> bool:
    """In mixtures of the inputs of the longest sentence it is found, and one of other tokens is not."""
    longest = int(real.sum(1).argmax())
    inputs, real = inputs[longest : longest + 1], real[longest : longest + 1]
    places = torch.arange(inputs.shape[1], device=inputs.device)[None]
    read = model.anatomy.blocks[0].attended(model.embed(inputs, places))[real].double()
    if len(read) >= read.shape[1]:
        return False  # one sentence fills the layer
    angles = torch.arange(1, 2 * len(read) + 1)[:, None] * torch.arange(1, len(read) + 1)
    rows = angles.to(read).cos() @ read
    occurs = set(inputs.flatten().tolist()) | model.vocabulary.marks
    others = [t for t in range(model.vocabulary.size) if t not in occurs][-1:]
    strange = inputs.where(~real, torch.tensor(others or [0], device=inputs.device))
    shown = _stand(rows, len(read), model, inputs, real) | ~real
    return bool(shown.all()) and not (others and bool((_stand(rows, len(read), model, strange, real)).any()))


def _far(model: ReadsSentences, tokens: Tensor, places: Tensor, basis: Tensor) -> Tensor:
    """Distance of the first layer's inputs from the span, relative to their norms, (B, L)."""
    x = model.anatomy.blocks[0].attended(model.embed(tokens, places)).double()
    beside: Tensor = x - x @ basis.T @ basis
    far: Tensor = beside.norm(dim=2) / x.norm(dim=2).clamp_min(1e-12)
    return far


def _nearest_strangers(model: ReadsSentences, inputs: Tensor, basis: Tensor) -> Tensor:
    """The smallest distance among tokens that do not occur, for each position, (L,)."""
    occurs = set(inputs.flatten().tolist()) | model.vocabulary.marks
    others: Sequence[int] = [t for t in range(model.vocabulary.size) if t not in occurs]
    step = max(1, len(others) // STRANGERS)
    some = torch.tensor(others[::step][:STRANGERS], device=inputs.device)
    if not len(some):
        return torch.zeros(inputs.shape[1], device=inputs.device)
    tokens = some[:, None].expand(-1, inputs.shape[1])
    places = torch.arange(inputs.shape[1], device=inputs.device).expand(tokens.shape)
    return _far(model, tokens, places, basis).min(dim=0).values
