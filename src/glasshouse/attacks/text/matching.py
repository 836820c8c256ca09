"""Gradient matching for sentences, shared by TAG and LAMP: candidates and their distance from the update.

Candidates are vectors in place of token embeddings, in units of the embeddings' standard deviation, so that
no step size depends on the model. After the search, each becomes the token nearest in angle.

Known in advance: marks (start, end, padding) are at their positions. The length of the longest sentence
follows from the gradient of the position embeddings; papers assume all lengths known, here the others are
drawn, with the start, from lengths of auxiliary sentences. Classes of sentences are inferred from the head's
gradient, or granted. In next-token prediction, the targets are soft assignments of a candidate's own vectors
to tokens: there are no further unknowns.

The gradient of the token embeddings is not matched, as in LAMP: vectors that are not tokens have no row
there. Breaks when: nothing else was sent; clients use Adam. Several local steps are read as one.

Shape letters: N candidates, B sentences, L tokens of the longest one, D width, V vocabulary.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final, Literal, final

import torch
from torch import Tensor
from torch.nn import functional as F

from glasshouse.attacks.objective import SearchedLoss
from glasshouse.attacks.parts.labels import known_labels
from glasshouse.attacks.parts.matching.distance import ROUNDING
from glasshouse.attacks.parts.replica import Replica, replica
from glasshouse.attacks.parts.search.rows import RowLoss, Rows
from glasshouse.attacks.sequences import Sequences
from glasshouse.attacks.text.reading import check_sentences
from glasshouse.errors import Inapplicable
from glasshouse.models.text.base import TextModel
from glasshouse.rng import Rng
from glasshouse.transcript.view import View

Distance = Literal["cosine", "l2_l1"]
"""``cosine``: 1 - cos, the mean over tensors; ``l2_l1``: the L2 norm plus the weighted L1 norm of the
difference, summed over tensors, as a share of the value for a zero gradient."""

FREE: Final = -1
"""Marks the position of an unknown token."""
LOUD: Final = 1.5
"""A position's row this many times longer than the shortest one has changed by more than noise."""
SHARP: Final = 20.0
"""Sharpness of the soft assignment to tokens: nats between a vector's token and one at typical distance."""


def anywhere(points: Tensor) -> Tensor:
    """Vectors are unbounded: a search may stand where it is."""
    return points


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Candidates:
    """Points of the search.

    Attributes:
        points: (N, B, L, D), in standard deviations of the token embeddings.
        marks: (N, B, L) int64, the known tokens, ``FREE`` elsewhere.
    """

    points: Tensor
    marks: Tensor

    def pick(self, rows: Tensor) -> "Candidates":
        """The candidates at ``rows``."""
        return Candidates(points=self.points[rows], marks=self.marks[rows])

    def permuted(self, row: int, order: Tensor) -> "Candidates":
        """One candidate with its points (B * L, D) reordered; ``order`` must keep marks in place."""
        points, marks = self.points[row : row + 1], self.marks[row : row + 1]
        moved = points.flatten(0, 2)[order.to(points.device)]
        return Candidates(points=moved.reshape(points.shape), marks=marks)


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Matching:
    """One update and the distance of candidates' gradients from it.

    Attributes:
        client: the model and the update.
        model: that of ``client``.
        target: gradients to match, by name.
        labels: classes of the sentences, (B,); unused for next-token prediction.
        longest: tokens of the longest sentence; None: unknown.
        distance: of gradients.
        weight: of the L1 norm in ``l2_l1``.
    """

    client: Replica
    model: TextModel
    target: Mapping[str, Tensor]
    labels: Tensor
    longest: int | None
    distance: Distance
    weight: float

    @property
    def table(self) -> Tensor:
        """The token embeddings, (V, D)."""
        return self.model.anatomy.tokens.weight.detach()

    @cached_property
    def spread(self) -> float:
        """Standard deviation of the token embeddings."""
        return float(self.table.std())

    @cached_property
    def usual_norm(self) -> float:
        """The mean norm of a token embedding, in these units."""
        return float(self.table.norm(dim=1).mean()) / self.spread

    def draw(self, count: int, *, auxiliary: Tensor | None, generator: torch.Generator) -> Candidates:
        """``count`` candidates from N(0, 1), with plausible lengths.

        Args:
            count: N.
            auxiliary: sentences from whose lengths to draw; None: all lengths are equally likely.
            generator: for vectors and lengths.
        """
        words, sentences = self.model.vocabulary, self.client.images
        longest = self.longest or self.client.terms.architecture.input_shape[0]
        known = torch.arange(1, longest + 1) if auxiliary is None else words.real(auxiliary).sum(1).cpu()
        known = known[known <= longest] if bool((known <= longest).any()) else torch.tensor([longest])
        lengths = known[torch.randint(len(known), (count, sentences), generator=generator)]
        if self.longest is not None:
            lengths[torch.arange(count), torch.randint(sentences, (count,), generator=generator)] = longest
        around = (words.start >= 0) + (words.end >= 0)
        inner = [[FREE] * max(1, int(length) - around) for length in lengths.flatten()]
        marks = words.stack(inner, length=max(longest, 1 + around)).reshape(count, sentences, -1)
        points = torch.randn(*marks.shape, self.model.width, generator=generator)
        return Candidates(points=points.to(self.client.device), marks=marks.to(self.client.device))

    def vectors(self, candidates: Candidates) -> Tensor:
        """The input embeddings, (N, B, L, D): rescaled points, and the embeddings of the marks."""
        own = self.table[candidates.marks.clamp_min(0)]
        return torch.where((candidates.marks == FREE)[..., None], candidates.points * self.spread, own)

    def loss(self, marks: Tensor) -> RowLoss:
        """The distance as a function of points, for candidates with these ``marks`` (N, B, L)."""

        def loss(points: Tensor, rows: Rows) -> Tensor:
            which = Candidates(points=points, marks=rows.pick(marks))
            return self.distances(self.vectors(which), which.marks, derivative=True)

        return loss

    def losses(self, candidates: Candidates) -> Tensor:
        """The distance of each candidate, (N,), without a derivative."""
        return self.distances(self.vectors(candidates), candidates.marks).double()

    def distances(self, vectors: Tensor, tokens: Tensor, *, derivative: bool = False) -> Tensor:
        """Distance of the gradients of candidates from the received one, (N,) ≥ 0.

        Args:
            vectors: (N, B, L, D).
            tokens: (N, B, L), which give the padding.
            derivative: whether to keep the graph.
        """
        each = [self._distance(*one, derivative) for one in zip(vectors, tokens, strict=True)]
        return torch.stack(each)

    def _distance(self, vectors: Tensor, tokens: Tensor, derivative: bool) -> Tensor:
        parameters = [self.model.get_parameter(name) for name in self.target]
        with torch.enable_grad():
            loss = self._training_loss(vectors, self.model.vocabulary.real(tokens))
            slopes = torch.autograd.grad(loss, parameters, create_graph=derivative)
        pairs = list(zip(slopes, self.target.values(), strict=True))
        if self.distance == "cosine":
            each = [1 - F.cosine_similarity(a.flatten(), b.flatten(), 0) for a, b in pairs]
            return torch.stack(each).mean()
        nothing = sum(self._size(b) for _, b in pairs)
        return torch.stack([self._size(a - b) for a, b in pairs]).sum() / nothing

    def _size(self, tensor: Tensor) -> Tensor:
        squared = tensor.square().sum()
        return (squared + torch.finfo(squared.dtype).tiny).sqrt() + self.weight * tensor.abs().sum()

    def _training_loss(self, vectors: Tensor, real: Tensor) -> Tensor:
        logits = self.model.logits(vectors, real)
        if not self.model.predicts_tokens:
            return self.model.task.loss(logits, self.labels, vectors)
        counts, likely = real[:, 1:].to(logits.dtype), self._likely(vectors[:, 1:])
        each = F.cross_entropy(logits[:, :-1].transpose(1, 2), likely.transpose(1, 2), reduction="none")
        return ((each * counts).sum(1) / counts.sum(1).clamp_min(1)).mean()

    def _likely(self, vectors: Tensor) -> Tensor:
        """Soft assignment of vectors (B, L, D) to tokens: probabilities (B, L, V) that fall with distance."""
        table = self.table
        usual = 2 * table.var(0).sum()  # mean squared distance of two tokens
        distances = table.square().sum(-1) - 2 * vectors @ table.T  # without the term common to all tokens
        return (-SHARP * distances / usual).softmax(-1)

    def tokens(self, candidates: Candidates) -> Tensor:
        """The token nearest in angle to every point, and the known marks: (N, B, L)."""
        table = F.normalize(self.table, dim=-1)
        marks = torch.tensor(sorted(self.model.vocabulary.marks)).to(self.client.device)
        likeness = (candidates.points.detach() @ table.T).index_fill(-1, marks, -torch.inf)
        return torch.where(candidates.marks == FREE, likeness.argmax(-1), candidates.marks)

    def claim(self, tokens: Tensor, *, loss: float) -> Sequences:
        """The claim about the client: ``tokens`` (B, L); the confidence of every one is minus the loss."""
        length, pad = self.client.terms.architecture.input_shape[0], self.model.vocabulary.pad
        full = torch.full((len(tokens), length), pad)
        full[:, : tokens.shape[1]] = tokens
        confidence = torch.full((len(tokens),), -loss)
        return Sequences(about=self.client.about, tokens=full, confidence=confidence)

    def searched_loss(self) -> SearchedLoss:
        """The distance of sentences, for the judge; a search may have ended between tokens.

        For sentences without labels (-1) the inferred classes are used.
        """

        def loss(tokens: Tensor, labels: Tensor) -> Tensor:
            labelled = bool((labels >= 0).all())
            each = [replace(self, labels=y.to(self.labels.device)) if labelled else self for y in labels]
            rows = zip(each, tokens, strict=True)
            return torch.cat([one.distances(self.table[row][None], row[None]) for one, row in rows])

        return SearchedLoss(
            loss=loss,
            noise=ROUNDING,
        )


def match_gradient(view: View, *, subject: str, distance: Distance, weight: float, rng: Rng) -> Matching:
    """Set up gradient matching for a view of one update.

    Args:
        view: of one update.
        subject: the attack, for errors.
        distance: of gradients.
        weight: of the L1 norm in ``l2_l1``.
        rng: for label inference.

    Raises:
        Inapplicable: not one update, not a text model, or nothing but the token embeddings was sent.
    """
    check_sentences(view.terms.architecture, subject=subject)
    client = replica(view, subject=subject)
    model = client.model
    assert isinstance(model, TextModel)
    sent = client.gradient()
    target = {
        name: t
        for name, t in sent.items()
        if model.get_parameter(name) is not model.anatomy.tokens.weight and bool(t.any())
    }
    if not target:
        raise Inapplicable(
            subject,
            needs="gradients that are not zero, of more than the tokens' vectors",
            got=", ".join(sorted(sent)[:6]) or "nothing",
            fix="let clients train all layers, or use embedding_rows",
        )
    for name in target:
        model.get_parameter(name).requires_grad_()
    classes = not model.predicts_tokens
    return Matching(
        client=client,
        model=model,
        target=target,
        labels=known_labels(view, client, rng=rng) if classes else torch.zeros(client.images).long(),
        longest=_longest(model, sent, view.terms.architecture.input_shape[0]),
        distance=distance,
        weight=weight,
    )


def _longest(model: TextModel, sent: Mapping[str, Tensor], length: int) -> int | None:
    """Number of position embeddings that changed; None: they were not sent.

    In next-token prediction a decoder's last token has no loss, and its position embedding does not change.
    """
    table = model.anatomy.positions
    names = [f"{name}.weight" for name, one in model.named_modules() if one is table and table is not None]
    rows = next((sent[name] for name in names if name in sent), None)
    if rows is None:
        return None
    norms = rows.double().norm(dim=1)
    moved = (norms[:length] > LOUD * norms.min()).nonzero()[:, 0]
    unseen = model.predicts_tokens and model.anatomy.causal
    return min(length, int(moved[-1]) + 1 + unseen) if len(moved) else length
