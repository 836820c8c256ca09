"""Who wrote the trees of later rounds of bagging, as another client sees them: by their roots, and by cuts.

The trees of a round come in an unknown order and without a name. All clients boost the same common model, so
that the sums of derivatives at a root are those of all rows of its author at the same margins. Per row, both
change slowly from one round of a client to its next: the mean second derivative says how sure the common
model is of its rows, the mean first derivative how much their labels differ from it. The number of rows
follows from the first round, where every row has the same margin. A cut of ``hist`` is a value of its
author's column: one that an author used before speaks for it, the more so the rarer the value is among public
rows. Each round is one assignment of least cost; then all rounds are assigned anew, with the rounds after
them known as well.

Source: our own. TimberStrike (Kotsiantis et al. 2025, PETS, arXiv:2506.07605) pairs the trees of consecutive
rounds by the second derivatives of their roots alone. The settings were chosen on made-up clinics.

Breaks when: clients have equally many rows and equal shares of labels; two that are taken for each other
once stay so.

Shape letters: T rounds, N clients, F entries of an encoded row.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Final, final

import numpy as np
import torch
from scipy.optimize import linear_sum_assignment

from glasshouse.attacks.authorship import Authors
from glasshouse.attacks.base import About, Claim, Needs
from glasshouse.attacks.parts.documents import in_entries, read_sent
from glasshouse.attacks.trees.algebra import Floats
from glasshouse.errors import Inapplicable
from glasshouse.formats.carried import bytes_of
from glasshouse.formats.records import LEAF, Tree, TreeEnsemble
from glasshouse.registry import Card
from glasshouse.rng import Rng
from glasshouse.transcript.view import View
from glasshouse.wire import Broadcast, Update

SUBJECT: Final = "attack 'tree_authors'"
# | number    | what it is                                                            |
# |-----------|-----------------------------------------------------------------------|
# | FIRST     | moves of (log mean h, mean g) from the first round to the second      |
# | LATER     | moves of both from any later round to its next                        |
# | FARTHEST  | largest cost of one such distance                                     |
# | CUT       | what the log-odds of a shared cut count                               |
# | RAREST    | smallest share of public rows that a value is taken to have           |
# | AGAIN     | passes over all rounds after the first pass                           |
# | SAME      | entries that are equal in float32; the least chance of a value        |
# Chosen on the made-up clinic, draws 0 to 4.
FIRST: Final = np.array([0.1, 0.05])
LATER: Final = np.array([0.05, 0.1])
FARTHEST: Final = 20.0
CUT: Final = 0.5
RAREST: Final = 5e-4
AGAIN: Final = 3
SAME: Final = 1e-6
Cut = tuple[int, float]


@final
@dataclass(frozen=True, kw_only=True)
class TreeAuthors:
    """Link the trees of later rounds to the first one of their author."""

    card: ClassVar[Card] = Card(
        title="Tree authors",
        summary="which trees of bagging the same client wrote, by the sums of their roots and by shared cuts",
        source="our own; beyond TimberStrike, PETS 2025, arXiv:2506.07605",
        claims=("authors",),
        threat="client, sees the common trees",
        control={
            "setting": "six made-up clinics of 60 to 180 rows, six rounds",
            "scenario": {
                "data": {"source": "clinic", "examples": 120, "auxiliary": 600, "partition": "unequal"},
                "model": {"name": "boosted_trees"},
                "federation": {
                    "protocol": "xgb_bagging",
                    "batch_size": 120,
                    "rounds": 6,
                    "keep": {"rounds": "all"},
                    "options": {"max_depth": 4, "base_score": 0.5},
                },
                "threat": {"role": "client", "client": 0},
            },
            "metric": "authors_named",
        },
    )
    needs: ClassVar[Needs] = Needs(
        sees=frozenset({"broadcast"}),
        scope="run",
        uses=frozenset({"auxiliary"}),
        protocols=frozenset({"xgb_bagging"}),
        modalities=frozenset({"row"}),
    )
    budget: ClassVar[None] = None

    def run(self, view: View, *, rng: Rng) -> tuple[Claim, ...]:
        """One claim about all rounds whose trees were sent round.

        Raises:
            Inapplicable: a server, which knows who sent what; rounds that were not kept, or fewer than three;
                trees that state no sums.
        """
        del rng  # deterministic
        rounds, base = read_rounds(view)
        public = view.grants.auxiliary
        rows = np.zeros((0, 0)) if public is None else public.inputs.cpu().double().numpy()
        authors = Reader(rounds=rounds, derivative=base * (1 - base), public=rows).read()
        about = About(rounds=tuple(range(len(rounds))))
        return (Authors(about=about, authors=torch.tensor(authors)),)


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Sent:
    """What the clients added in one round, in the order in which it came.

    Attributes:
        gradients: sum of the first derivatives at each root, (N,).
        hessians: of the second ones, (N,).
        cuts: column and value of every cut between two values of a number.
        own: place of what the attacking client sent; -1: the attacker is no client.
    """

    gradients: Floats
    hessians: Floats
    cuts: tuple[frozenset[Cut], ...]
    own: int

    @property
    def others(self) -> list[int]:
        """The places of what others sent."""
        return [place for place in range(len(self.hessians)) if place != self.own]


def read_rounds(view: View) -> tuple[list[Sent], float]:
    """What was added in every round but the last, and the probability before the first tree.

    Raises:
        Inapplicable: as :meth:`TreeAuthors.run`.
    """
    clients, each = view.terms.clients, int(view.terms.options.get("trees", 1))
    numbers = [one.round for one in view.rounds]
    if view.threat.role == "server":
        raise Inapplicable(
            SUBJECT,
            needs="a client or a bystander, who sees the common trees without names",
            got="the server, to whom every client sends its own",
            fix='set threat.role = "client" and threat.client = 0',
        )
    if len(numbers) < 3 or numbers != list(range(len(numbers))):
        raise Inapplicable(
            SUBJECT,
            needs="every round from the first on, at least three: the last one's trees are not sent round",
            got=f"rounds {numbers}",
            fix='set federation.keep.rounds = "all", and federation.rounds to 3 or more',
        )
    trees = trees_in(view.rounds[-1].broadcast, view)
    if trees.objective != "logistic":
        raise Inapplicable(
            SUBJECT,
            needs="trees of two classes",
            got=f"objective '{trees.objective}'",
            fix="audit binary:logistic; how fast sums of other objectives move was not measured",
        )
    if len(trees.trees) != clients * each * numbers[-1]:
        raise Inapplicable(
            SUBJECT,
            needs=f"{clients} clients that add {each} trees in each of {numbers[-1]} rounds",
            got=f"{len(trees.trees)} trees",
            fix="audit a federation in which all clients take part in every round",
        )
    received = []
    for number, one in enumerate(view.rounds[:-1]):
        start = number * clients * each
        blocks = [trees.trees[start + i * each : start + (i + 1) * each] for i in range(clients)]
        mine = None if one.sent is None else trees_in(one.sent, view).trees
        if view.threat.role == "client" and mine is None:
            raise Inapplicable(
                SUBJECT,
                needs="what the attacking client itself sent in every round",
                got=f"nothing of it in round {number}",
                fix='set federation.keep.rounds = "all"',
            )
        places = [i for i, block in enumerate(blocks) if mine and all(map(same_tree, block, mine))]
        roots = [sums_at_root(block[0], view) for block in blocks]
        received.append(
            Sent(
                gradients=np.array([gradient for gradient, _ in roots]),
                hessians=np.array([hessian for _, hessian in roots]),
                cuts=tuple(frozenset(c for tree in block for c in cuts_of(tree)) for block in blocks),
                own=places[0] if places else -1,
            )
        )
    return received, 0.5 if trees.base is None else trees.base


def trees_in(message: Broadcast | Update, view: View) -> TreeEnsemble:
    """The trees of a message, in entries of encoded rows.

    Raises:
        Inapplicable: it is no document of trees.
    """
    documents = [t for t in message.tensors.values() if t.dtype == torch.uint8]
    document = read_sent(bytes_of(documents[0]), subject=SUBJECT)[1] if len(documents) == 1 else None
    if not isinstance(document, TreeEnsemble):
        raise Inapplicable(
            SUBJECT,
            needs="a message that is one document of trees",
            got=f"{len(documents)} documents" if document is None else type(document).__name__,
            fix="audit a protocol that sends trees: glasshouse list protocols",
        )
    return in_entries(document, view, subject=SUBJECT)


def same_tree(left: Tree, right: Tree) -> bool:
    """Whether two trees ask the same and answer the same."""
    pairs = ((left.feature, right.feature), (left.threshold, right.threshold), (left.value, right.value))
    return all(np.array_equal(one, other, equal_nan=True) for one, other in pairs)


def sums_at_root(tree: Tree, view: View) -> tuple[float, float]:
    """The sums of the first and of the second derivatives of all rows of a tree.

    Raises:
        Inapplicable: the tree does not state them.
    """
    if tree.hessian is None or tree.weight is None:
        raise Inapplicable(
            SUBJECT,
            needs="trees that state the weight of their root and its sum of second derivatives",
            got="trees without them",
            fix="nothing: what is left of such files says little about its author",
        )
    # A root that is a leaf states its weight after shrinkage.
    shrunk = float(view.terms.options.get("eta", 0.3)) if tree.feature[0] == LEAF else 1.0
    penalty = float(view.terms.options.get("reg_lambda", 1.0))
    hessian = float(tree.hessian[0])
    return -float(tree.weight[0]) / shrunk * (hessian + penalty), hessian


def cuts_of(tree: Tree) -> set[Cut]:
    """Column and value of every cut inside a column's range; a category is cut at its end."""
    return {
        (int(f), float(c)) for f, c in zip(tree.feature, tree.threshold, strict=True) if f >= 0 and 0 < c < 1
    }


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Reader:
    """Assigns what came in every round to the author of one of the first round's messages.

    Attributes:
        rounds: from the first on.
        derivative: second one of every row before the first tree.
        public: rows of the same kind, (R, F); R = 0: none.
    """

    rounds: Sequence[Sent]
    derivative: float
    public: Floats
    _odds: dict[tuple[Cut, int], float] = field(default_factory=dict, init=False)

    @property
    def _sizes(self) -> Floats:
        """Rows of every author."""
        return self.rounds[0].hessians / self.derivative

    def per_row(self, t: int, place: int, author: int) -> Floats:
        """Log mean second derivative and mean first one, less those of the whole round."""
        one, others = self.rounds[t], self.rounds[t].others
        rows = self._sizes[self.rounds[0].others].sum()
        return np.array(
            [
                np.log(one.hessians[place] / self._sizes[author]) - np.log(one.hessians[others].sum() / rows),
                one.gradients[place] / self._sizes[author] - one.gradients[others].sum() / rows,
            ]
        )

    def odds(self, cut: Cut, author: int) -> float:
        """Log-odds that an author who had this cut before wrote a tree that has it: others need the value."""
        if (cut, author) not in self._odds:
            column, value = cut
            shared = (np.abs(self.public[:, column] - value) < SAME).mean() if len(self.public) else 0.0
            share = max(float(shared), RAREST)
            self._odds[cut, author] = -float(np.log(1 - (1 - share) ** self._sizes[author] + SAME))
        return self._odds[cut, author]

    def cost(self, t: int, place: int, author: int, known: Sequence[dict[int, int]]) -> float:
        """Of giving a message of round ``t`` to an author, whose messages of other rounds are ``known``."""
        mine = {u: at[author] for u, at in enumerate(known) if u != t}
        here, total = self.per_row(t, place, author), 0.0
        for u in {t - 1, t + 1} & set(mine):
            moves = FIRST if 0 in (t, u) else LATER
            far = ((here - self.per_row(u, mine[u], author)) / moves) ** 2 / 2
            total += float(np.minimum(far, FARTHEST).sum())
        used: frozenset[Cut] = frozenset().union(*(self.rounds[u].cuts[i] for u, i in mine.items()))
        shared = self.rounds[t].cuts[place] & used
        return total - CUT * sum(self.odds(cut, author) for cut in shared)

    def read(self) -> list[list[int]]:
        """The place of its author's first message, for every message, (T, N)."""
        names = self.rounds[0].others
        known = [{author: author for author in names}]
        for _ in range(1 + AGAIN):
            for t in range(1, len(self.rounds)):
                places = self.rounds[t].others
                cost = [[self.cost(t, place, author, known) for author in names] for place in places]
                pairs = zip(*linear_sum_assignment(cost), strict=True)
                known[t : t + 1] = [{names[b]: places[a] for a, b in pairs}]
        return [self._places(t, at) for t, at in enumerate(known)]

    def _places(self, t: int, at: dict[int, int]) -> list[int]:
        """By message of round ``t``: the author's first place; the attacker's own is its own."""
        found = [self.rounds[0].own] * len(self.rounds[t].hessians)
        for author, place in at.items():
            found[place] = author
        return found
