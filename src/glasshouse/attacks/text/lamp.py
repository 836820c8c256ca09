"""LAMP: gradient matching with vectors, alternating with token moves under a language model's prior.

Source: Balunović et al. 2022, "LAMP: Extracting Text from Gradients with Language Model Priors", NeurIPS,
    arXiv:2202.08827, Algorithm 1: the best of many random starts and of permutations of the best; then,
    alternating, Adam on the gradient distance with a penalty on deviations from the typical norm of token
    embeddings (section 4.1), and swaps and moves of tokens, chosen by that distance and a language model's
    prior (section 4.2).

Where we differ: the prior is an n-gram model (``ngram``) of the adversary's auxiliary sentences, not GPT-2;
its weight applies to the logarithm of perplexity, relative to the scale of the distance. A move is accepted
if it lowers the loss, and the next move starts from there. Adam's moments are reset between parts. In a
batch, two sentences may swap tokens. Lengths and classes are not given (``matching``).

Breaks when: a batch has more than a few sentences, noise hides most of the gradient, or the auxiliary
sentences are of another kind.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import ClassVar, Final, final

import torch
from torch import Tensor

from glasshouse.attacks.base import About, Claim, Needs
from glasshouse.attacks.budget import MATCHING, Budget
from glasshouse.attacks.objective import SearchedLoss
from glasshouse.attacks.parts.local_steps import LINEAR, SENTENCES, update_needs
from glasshouse.attacks.parts.search.adam import Descent, Found, adam
from glasshouse.attacks.text.matching import FREE, Candidates, Distance, Matching, anywhere, match_gradient
from glasshouse.attacks.text.ngram import NGrams, count_ngrams
from glasshouse.attacks.text.reading import SentenceAttack
from glasshouse.limits import Count, NotNegative
from glasshouse.registry import Card, Offer
from glasshouse.rng import Rng
from glasshouse.transcript.view import View

SUBJECT = "attack 'lamp'"


@final
@dataclass(frozen=True, kw_only=True)
class Lamp(SentenceAttack):
    """Gradient matching of sentences under a language model's prior.

    Args:
        search: by Adam, in standard deviations of the token embeddings, over all parts together.
        distance: of gradients: ``cosine`` or ``l2_l1``, as in TAG.
        weight: of the L1 norm in ``l2_l1``.
        norm: weight of the squared relative deviation from the typical norm of a token embedding.
        prior: weight of the language model's negative log-likelihood per token, in nats.
        starts: initial candidates, of which the best are used: half random, half permutations of the best.
        every: iterations between moves.
        moves: number tried after each part.
    """

    card: ClassVar[Card] = Card(
        title="LAMP",
        summary="sentences by matching gradients, in turn with moves that a language model finds likely",
        source="Balunović et al. 2022, NeurIPS, arXiv:2202.08827",
        claims=("sequences",),
        threat="server, sees single updates, holds auxiliary sentences",
        grants=("auxiliary",),
        control={
            "setting": "a small GPT that tells classes, one sentence, no defence",
            "scenario": {
                "data": {"source": "sentences", "auxiliary": 200, "task": "classification"},
                "model": {"name": "small_gpt", "width": 64},
            },
            "metric": "token_accuracy",
        },
        offers=(
            Offer(strength=0.015, settings={"search": {"iterations": 60}, "every": 20}, seconds=5),
            Offer(strength=0.025, seconds=20),
        ),
    )
    name: ClassVar[str] = "lamp"
    needs: ClassVar[Needs] = replace(
        update_needs(LINEAR, "labels", modalities=SENTENCES, twice=True), grants=frozenset({"auxiliary"})
    )

    search: Descent = field(default_factory=partial(Descent, restarts=1, learning_rate=0.3))
    distance: Distance = "cosine"
    weight: NotNegative = 0.01
    norm: NotNegative = 0.1
    prior: NotNegative = 0.01
    starts: Count = 100
    every: Count = 60
    moves: Count = 60

    @property
    def parts(self) -> int:
        """Number of alternations between iterations and moves."""
        return max(1, self.search.iterations // self.every)

    @property
    def budget(self) -> Budget:
        """Number of candidate gradients: of the starts, of all iterations and of all moves."""
        amount = self.starts + self.search.iterations + self.moves * self.parts
        return Budget(unit="gradients", amount=amount, restarts=self.search.restarts, gradients=MATCHING)

    def run(self, view: View, *, rng: Rng) -> tuple[Claim, ...]:
        """The sentences with the smallest loss (distance and prior) after any part.

        Raises:
            Inapplicable: not exactly one update, or nothing but the token embeddings was sent.
        """
        matching, prior = self._problem(view, rng)
        assert view.grants.auxiliary is not None  # needs.grants
        now = self._start(matching, view.grants.auxiliary.inputs, rng.child("starts").torch())
        draws, share = rng.child("moves").torch(), self.search.iterations // self.parts
        tokens, lowest = torch.empty(0), torch.inf
        for part in range(self.parts):
            rate = self.search.learning_rate * self.search.pace(part / self.parts)
            searched = adam(
                matching.loss(now.marks),
                now.points,
                replace(self.search, iterations=share, learning_rate=rate, schedule="constant"),
                onto=anywhere,
                rngs=[rng.child(f"part {part}")],
                pulls=[partial(self._pull, matching)],
                before=part * share,
            )
            now, losses = self._move(matching, prior, replace(now, points=searched.points), draws)
            best = Found(points=now.points, losses=losses).best()
            if float(losses[best]) < lowest:
                tokens, lowest = matching.tokens(now)[best], float(losses[best])
        return (matching.claim(tokens, loss=lowest),)

    def _problem(self, view: View, rng: Rng) -> tuple[Matching, NGrams]:
        matching = match_gradient(
            view, subject=SUBJECT, distance=self.distance, weight=self.weight, rng=rng.child("labels")
        )
        assert view.grants.auxiliary is not None  # needs.grants
        return matching, count_ngrams(view.grants.auxiliary.inputs, matching.model.vocabulary)

    def _start(self, matching: Matching, auxiliary: Tensor, draws: torch.Generator) -> Candidates:
        """The best R initial candidates: random ones, and permutations of the best of these."""
        restarts, half = self.search.restarts, -(-self.starts // 2)
        initial = matching.draw(max(restarts, half), auxiliary=auxiliary, generator=draws)
        losses = matching.losses(initial)
        best = losses.argsort()[:restarts]
        leaders, least = initial.pick(best), losses[best]
        for number in range(self.starts - half):
            row = number % restarts
            order = shuffle(leaders.marks[row] == FREE, generator=draws)
            other = leaders.permuted(row, order)
            loss = matching.losses(other)[0]
            if loss < least[row]:
                leaders.points[row], least[row] = other.points[0], loss
        return leaders

    def _pull(self, matching: Matching, points: Tensor) -> Tensor:
        """Penalty (R,) on the deviation of vectors (R, B, L, D) from the typical norm."""
        away: Tensor = points.norm(dim=-1).mean((1, 2)) / matching.usual_norm - 1
        return self.norm * away.square()

    def _move(
        self, matching: Matching, prior: NGrams, now: Candidates, draws: torch.Generator
    ) -> tuple[Candidates, Tensor]:
        """Every candidate after its moves, and its loss: distance and prior, (R,)."""
        tokens = matching.tokens(now)
        losses = matching.losses(now) + self._prior(prior, tokens)
        points = now.points.clone()
        for row in range(len(points)):
            for _ in range(self.moves):
                order = rearrangement(now.marks[row] == FREE, generator=draws).to(tokens.device)
                moved = replace(now, points=points).permuted(row, order)
                sentences = tokens[row].flatten()[order].reshape(1, *tokens.shape[1:])
                loss = (matching.losses(moved) + self._prior(prior, sentences))[0]
                if loss < losses[row]:
                    points[row], tokens[row], losses[row] = moved.points[0], sentences[0], loss
        return replace(now, points=points), losses

    def _prior(self, prior: NGrams, tokens: Tensor) -> Tensor:
        """The prior's part of the loss of tokens (N, B, L), (N,)."""
        each = prior.losses(tokens.cpu().flatten(0, 1)).reshape(tokens.shape[:2])
        return (self.prior * each.mean(1)).to(tokens.device)

    def objective(self, view: View, about: About, *, rng: Rng) -> SearchedLoss:
        """The distance of gradients, and the prior's loss of the tokens."""
        del about  # a view of one update
        matching, prior = self._problem(view, rng)
        searched = matching.searched_loss()
        return replace(searched, loss=lambda x, y: searched.loss(x, y) + self._prior(prior, x))


Draw = Callable[[int], int]
"""Draw a random integer below the given one."""


def _swap(places: list[int], draw: Draw) -> list[int]:
    """Swap two tokens."""
    a, b = draw(len(places)), draw(len(places))
    places[a], places[b] = places[b], places[a]
    return places


def _move(places: list[int], draw: Draw, *, run: int = 1) -> list[int]:
    """Move one token, or a run of them, elsewhere."""
    start = draw(len(places) - run + 1)
    taken, rest = places[start : start + run], places[:start] + places[start + run :]
    target = draw(len(rest) + 1)
    return rest[:target] + taken + rest[target:]


def _move_run(places: list[int], draw: Draw) -> list[int]:
    return _move(places, draw, run=1 + draw(len(places) - 1))


def _prefix_to_end(places: list[int], draw: Draw) -> list[int]:
    cut = 1 + draw(len(places) - 1)
    return places[cut:] + places[:cut]


MOVES: Final = (_swap, _move, _move_run, _prefix_to_end)
"""Each returns a new order of two or more positions of one sentence."""


def rearrangement(free: Tensor, *, generator: torch.Generator) -> Tensor:
    """A random move of tokens at ``free`` positions (B, L) bool, as the source of each position, (B * L,).

    One of ``MOVES`` in one of the sentences or, with several sentences, a swap between any two positions, all
    equally likely.

    Examples:
        >>> free = torch.tensor([[True, True, False]])
        >>> rearrangement(free, generator=torch.Generator().manual_seed(0)).tolist()[2]
        2
    """

    def draw(below: int) -> int:
        return int(torch.randint(below, (1,), generator=generator))

    order = torch.arange(free.numel())
    sentences = [row.nonzero()[:, 0] + i * free.shape[1] for i, row in enumerate(free.cpu())]
    rows = [row for row in sentences if len(row) > 1]
    kind = draw(len(MOVES) + (len(sentences) > 1))
    if kind == len(MOVES):
        rows, kind = [torch.cat(sentences)], 0
    if rows:
        chosen = rows[draw(len(rows))]
        order[chosen] = torch.tensor(MOVES[kind](chosen.tolist(), draw))
    return order


def shuffle(free: Tensor, *, generator: torch.Generator) -> Tensor:
    """A random permutation of each sentence's tokens, in the form of :func:`rearrangement`."""
    order = torch.arange(free.numel())
    for i, row in enumerate(free.cpu()):
        places = row.nonzero()[:, 0] + i * free.shape[1]
        order[places] = places[torch.randperm(len(places), generator=generator)]
    return order
