"""Who wrote the trees of later rounds of bagging, as another client sees them: by their roots, and by cuts.

The trees of a round come in an unknown order. Those of the first round are told apart by their client's
number of rows: at a known margin the sum of second derivatives of a root says it. Later, the sum is that
of rows whose mean second derivative the attacking client takes from its own rows, and a cut of ``hist`` is a
value of its author's column: a cut that only one client used before speaks for it.
"""

import argparse
import json
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
ROUNDS, SEEDS = 10, 5
SHARED = 1.0
"""What one shared cut is worth, in tenths of a decade by which a root is off."""


def tree_of(document):
    """The one tree of a document."""
    return json.loads(document)["learner"]["gradient_booster"]["model"]["trees"][0]


def cuts_of(tree):
    """Column and value of every cut between two values of a number; a category is cut at 1."""
    pairs = zip(tree["split_indices"], tree["split_conditions"], tree["left_children"], strict=True)
    return {(f, c) for f, c, left in pairs if left >= 0 and 0 < c < 1}


def rounds_of(inputs, labels, parts, draws):
    """Of each round: the common model before it, its documents in a random order, and that order."""
    how = {"objective": "binary:logistic", "max_depth": 4, "nthread": 1, "tree_method": "hist"}
    how |= {"base_score": 0.5, "eta": 0.3, "seed": 0}
    common = b""
    for _ in range(ROUNDS):
        before = xgboost.Booster(how) if common else None
        if before:
            before.load_model(bytearray(common))
        order, sent = draws.permutation(len(parts)), []
        for k in order:
            rows = xgboost.DMatrix(inputs[parts[k]], labels[parts[k]], nthread=1)
            grown = xgboost.train(how, rows, 1, xgb_model=before)
            sent.append(bytes(grown[grown.num_boosted_rounds() - 1 :].save_raw("json")))
        yield before, sent, order
        for document in sent:
            common = append_trees(common, document)


def hits_of(inputs, labels, parts, draws, *, cuts):
    """Share of the other clients' trees of rounds 2 to 10 that are given to their author by client 0."""
    known, used, hits, count = {}, {}, 0, 0
    for before, sent, order in rounds_of(inputs, labels, parts, draws):
        trees = [tree_of(document) for document in sent]
        roots = np.array([tree["sum_hessian"][0] for tree in trees])
        if before is None:
            known = {int(k): 4 * root for k, root in zip(order, roots, strict=True)}
            used = {int(k): cuts_of(tree) for k, tree in zip(order, trees, strict=True)}
            continue
        own = before.predict(xgboost.DMatrix(inputs[parts[0]], nthread=1))
        mean = float((own * (1 - own)).mean())
        mine = int(np.abs(roots - mean * len(parts[0])).argmin())
        others, names = [i for i in range(len(trees)) if i != mine], [k for k in known if k]
        cost = 10 * np.abs(np.log10(roots[others])[:, None] - np.log10([mean * known[k] for k in names]))
        if cuts:
            for i, tree in enumerate(others):
                for j, name in enumerate(names):
                    rest = set().union(*(used[k] for k in names if k != name))
                    cost[i, j] -= SHARED * len(cuts_of(trees[tree]) & (used[name] - rest))
        given = {others[i]: names[j] for i, j in zip(*linear_sum_assignment(cost), strict=True)}
        hits += sum(order[i] == k for i, k in given.items())
        count += len(given)
        for i, k in given.items():
            used[k] |= cuts_of(trees[i])
    return hits / count


def main() -> None:
    """Print the share of right authors by the sizes of five clients."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", default="adult", choices=("clinic", "adult"), help="the table")
    arguments = parser.parse_args()
    rows = load(arguments.data).splits["train"].batch()
    for name, sizes in SIZES.items():
        for cuts in (False, True):
            rates = []
            for seed in range(SEEDS):
                draws = np.random.default_rng(seed)
                order, ends = draws.permutation(len(rows)), np.cumsum((0, *sizes))
                parts = [order[a:b] for a, b in pairwise(ends)]
                rates.append(hits_of(rows.inputs.numpy(), rows.labels.numpy(), parts, draws, cuts=cuts))
            print(arguments.data, name, "roots and cuts" if cuts else "roots", np.round(rates, 2),
                  f"mean {np.mean(rates):.2f}, chance 0.25", flush=True)  # fmt: skip


if __name__ == "__main__":
    main()
