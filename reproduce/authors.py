"""Who wrote the trees of later rounds of bagging, as another client sees them: by their roots, and by cuts.

The trees of a round come in an unknown order. Those of the first round are told apart by their client's
number of rows: at a known margin the sum of second derivatives of a root says it. Later a root has two sums,
and per row both change slowly from one round of a client to its next: the mean first derivative is how much
its labels differ from the common model, the mean second derivative how sure that model is of its rows. A cut
of ``hist`` is a value of its author's column: one that an author used before speaks for it, the more so the
rarer the value is among the attacking client's own rows. Each round is one assignment of least cost; then all
rounds are assigned anew, with the rounds after them known as well.

The settings were chosen on ``clinic``, draws 0 to 4 (``--data clinic --first 0``); what is reported is
``adult``, draws 10 to 14, at which nobody had looked before.
"""

import argparse
import json
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import xgboost
from scipy.optimize import linear_sum_assignment

from glasshouse.data.sources import load
from glasshouse.formats.xgboost import append_trees

SIZES = {
    "60 to 180": (60, 90, 120, 150, 180),
    "100 to 140": (100, 110, 120, 130, 140),
    "100 to 108": (100, 102, 104, 106, 108),
    "100 each": (100,) * 5,
}
ROUNDS, DRAWS, UNTOUCHED, PENALTY = 10, 5, 10, 1.0
FIRST, HESSIAN = 0.1, 0.05
"""By how much the log of a client's mean second derivative moves after the first round, and after others."""
GRADIENT = (0.05, 0.1)
"""By how much its mean first derivative does."""
CUT = 0.5
"""What the log-odds of shared cuts count."""
UNSEEN = 0.05
"""Rows that a value counts as which no row of the attacking client has."""
FARTHEST, AGAIN = 20.0, 3
"""Largest cost of one distance; passes over all rounds after the first."""
WAYS = {"second derivatives": (0, 0), "both derivatives": (1, 0), "and cuts": (1, 1)}


@dataclass(frozen=True, kw_only=True)
class Round:
    """Trees of a round as they came: sums of both derivatives at the root, cuts, and (truth) authors."""

    gradients: np.ndarray
    hessians: np.ndarray
    cuts: tuple
    authors: np.ndarray

    def others(self):
        """Positions of the trees that client 0 did not send itself."""
        return [i for i, author in enumerate(self.authors) if author != 0]


def cuts_of(tree):
    """Column and value of every cut between two values of a number; a category is cut at 1."""
    pairs = zip(tree["split_indices"], tree["split_conditions"], tree["left_children"], strict=True)
    return {(f, c) for f, c, left in pairs if left >= 0 and 0 < c < 1}


def rounds_of(inputs, labels, parts, draws):
    """What every round adds to the common model, in a random order."""
    how = {"objective": "binary:logistic", "max_depth": 4, "nthread": 1, "tree_method": "hist"}
    how |= {"base_score": 0.5, "eta": 0.3, "seed": 0, "reg_lambda": PENALTY}
    common, rounds = b"", []
    for _ in range(ROUNDS):
        before = xgboost.Booster(how) if common else None
        if before:
            before.load_model(bytearray(common))
        order, trees = draws.permutation(len(parts)), []
        for k in order:
            rows = xgboost.DMatrix(inputs[parts[k]], labels[parts[k]], nthread=1)
            grown = xgboost.train(how, rows, 1, xgb_model=before)
            sent = bytes(grown[grown.num_boosted_rounds() - 1 :].save_raw("json"))
            trees += json.loads(sent)["learner"]["gradient_booster"]["model"]["trees"]
            common = append_trees(common, sent)
        hessians = np.array([tree["sum_hessian"][0] for tree in trees])
        weights = np.array([tree["base_weights"][0] for tree in trees])
        cuts = tuple(map(cuts_of, trees))
        gradients = -weights * (hessians + PENALTY)
        rounds.append(Round(gradients=gradients, hessians=hessians, cuts=cuts, authors=order))
    return rounds


class Reader:
    """What client 0 makes of all rounds: it knows its rows, and how many rows the others have."""

    def __init__(self, rounds, sizes, own, *, gradients, cuts):
        self.rounds, self.sizes, self.own = rounds, np.array(sizes, float), own
        self.gradients, self.cuts, self.odds = gradients, cuts, {}
        self.names = range(1, len(sizes))
        # The first round is told apart by its sizes, or given where they are equal.
        self.given = [{i: int(rounds[0].authors[i]) for i in rounds[0].others()}]

    def per_row(self, t, i, k):
        """Both derivatives of tree ``i``, per row of ``k``, less those of the whole round."""
        one, others, rows = self.rounds[t], self.rounds[t].others(), self.sizes[1:].sum()
        hessian = np.log(one.hessians[i] / self.sizes[k]) - np.log(one.hessians[others].sum() / rows)
        return hessian, one.gradients[i] / self.sizes[k] - one.gradients[others].sum() / rows

    def speaks(self, cut, k):
        """Log-odds that ``k`` wrote a tree with a cut that it used before: others need to have the value."""
        if (cut, k) not in self.odds:
            count = int((np.abs(self.own[:, cut[0]] - cut[1]) < 1e-6).sum())
            share = max(count, UNSEEN) / len(self.own)
            self.odds[cut, k] = -np.log(1 - (1 - share) ** self.sizes[k] + 1e-9)
        return self.odds[cut, k]

    def cost(self, t, i, k):
        """Of giving tree ``i`` of round ``t`` to ``k``, whose trees of other rounds are known."""
        of = {u: next(j for j, name in at.items() if name == k) for u, at in enumerate(self.given) if u != t}
        here, total = self.per_row(t, i, k), 0.0
        spreads = (FIRST, GRADIENT[0]) if t == 1 else (HESSIAN, GRADIENT[1])
        for u in {t - 1, t + 1} & set(of):
            far = (np.subtract(here, self.per_row(u, of[u], k)) / spreads) ** 2 / 2
            total += min(far[0], FARTHEST) + self.gradients * min(far[1], FARTHEST)
        used = set().union(*(self.rounds[u].cuts[j] for u, j in of.items()))
        shared = self.rounds[t].cuts[i] & used
        return total - self.cuts * CUT * sum(self.speaks(cut, k) for cut in shared)

    def read(self):
        """Share of the other clients' trees after the first round that are given to their author."""
        for _ in range(1 + AGAIN):
            for t in range(1, len(self.rounds)):
                others = self.rounds[t].others()
                cost = [[self.cost(t, i, k) for k in self.names] for i in others]
                found = {others[a]: self.names[b] for a, b in zip(*linear_sum_assignment(cost), strict=True)}
                self.given[t : t + 1] = [found]
        pairs = zip(self.rounds[1:], self.given[1:], strict=True)
        return np.mean([one.authors[i] == k for one, given in pairs for i, k in given.items()])


def main() -> None:
    """Print the share of right authors by the sizes of five clients."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", default="adult", choices=("clinic", "adult"), help="the table")
    parser.add_argument("--first", type=int, default=UNTOUCHED, help="number of the first draw")
    arguments = parser.parse_args()
    rows = load(arguments.data).splits["train"].batch()
    inputs, labels = rows.inputs.numpy(), rows.labels.numpy()
    for name, sizes in SIZES.items():
        rates = {way: [] for way in WAYS}
        for draw in range(arguments.first, arguments.first + DRAWS):
            draws = np.random.default_rng(draw)
            order, ends = draws.permutation(len(rows)), np.cumsum((0, *sizes))
            parts = [order[a:b] for a, b in pairwise(ends)]
            rounds = rounds_of(inputs, labels, parts, draws)
            for way, (gradients, cuts) in WAYS.items():
                reader = Reader(rounds, sizes, inputs[parts[0]], gradients=gradients, cuts=cuts)
                rates[way].append(reader.read())
        for way, each in rates.items():
            print(arguments.data, name, way, np.round(each, 2), f"mean {np.mean(each):.3f}", flush=True)


if __name__ == "__main__":
    main()
