"""Bagging of boosted trees that are differentially private: cuts that no row decides, leaves with noise.

The shape of every tree is drawn at random from public cuts over the schema's ranges, so that it says nothing.
What a leaf adds is a Newton step on the sums of its rows, G of first and H of second derivatives, each with
Gaussian noise. One row is in one leaf of a tree, with |g| <= 1 and h <= 1/4 whatever its values are: with H
counted by ``SHARE`` / (1/4) the sums of a tree move by at most √(1 + SHARE²) when a row comes or goes, and by
at most twice that when it is exchanged for another. All trees compose, since later derivatives are taken at
margins that were sent before.

Source: Maddock et al. 2022, "Federated Boosted Decision Trees with Differential Privacy", CCS,
arXiv:2210.02910 (totally random trees with Newton steps, and its finding that boosting in batches is
enough). Where we differ: each client adds the noise for itself, without a secure sum; H has less noise than
G.

Neighbouring relation: one row of the client more or less. The number of rows is public.
"""

import json
import math
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Final, final

import numpy as np
from annotated_types import Ge, Le
from torch import Tensor

from glasshouse.errors import not_installed
from glasshouse.federation.defenses.accounting import check_level, needed_noise, spent_epsilon
from glasshouse.federation.defenses.guarantee import Guarantee
from glasshouse.federation.protocols.documents.base import as_agreed, broadcast, check, send, table_of
from glasshouse.federation.protocols.documents.xgb_histogram import STEP, cuts_of
from glasshouse.federation.setting import Setting
from glasshouse.formats.carried import NAME, tensor_of
from glasshouse.formats.records import LEAF
from glasshouse.formats.xgboost import append_trees, model_of
from glasshouse.interfaces import Recorder, Tamper, Traits
from glasshouse.limits import Count, Fix, Positive, Probability, check_ranges
from glasshouse.modalities.row import Row
from glasshouse.progress import track
from glasshouse.registry import Card
from glasshouse.rng import Rng
from glasshouse.wire import Batch

try:
    import xgboost
except ImportError as error:
    raise not_installed("protocol dp_bagging", "xgboost", error, extra="trees") from error

SHARE: Final = 0.5
"""Of the noise's budget that H has, on G's."""
SENSITIVITY: Final = math.sqrt(1 + SHARE**2)
"""Of (G, H · SHARE / (1/4)) of all leaves of a tree, for one row more or less."""


@final
@dataclass(frozen=True, kw_only=True)
class DpBagging:
    """Every client sends private trees; the server appends them. Its fields are public settings.

    Args:
        trees: added by a client per round.
        max_depth: of every tree; all leaves are on this level.
        eta: learning rate.
        reg_lambda: of the L2 penalty on weights.
        base_score: the probability before the first tree.
        max_bin: public cuts of a column.
        delta: of the guarantee, in (0, 1).
        noise_multiplier: standard deviation of the noise of one tree ÷ its sensitivity to one row; 0: from
            ``epsilon``.
        epsilon: of the guarantee over all ``rounds``; 0: from ``noise_multiplier``.
        rounds: that ``epsilon`` must cover.
    """

    card: ClassVar[Card] = Card(
        summary="private trees: each client's have cuts at random and noise in every leaf (DP-GBDT)",
        source="after Maddock et al. 2022, CCS, arXiv:2210.02910",
        extra="trees",
        details={"neighbours": "one row more or less"},
    )
    traits: ClassVar[Traits] = Traits(sends="document", advice="add more noise (a smaller epsilon)")

    trees: Count = 20
    max_depth: Annotated[int, Ge(1), Le(8), Fix("each level halves the rows of a leaf")] = 3
    eta: Positive = 0.3
    reg_lambda: Positive = 1.0
    base_score: Annotated[Probability, Fix("a public share of positives")] = 0.5
    max_bin: Annotated[int, Ge(2), Le(1024), Fix("try 32")] = 32
    delta: Annotated[Probability, Fix("try 1e-5")] = 1e-5
    noise_multiplier: float = 0.0
    epsilon: float = 0.0
    rounds: Count = 1

    def __post_init__(self) -> None:
        check_ranges(self, "protocol 'dp_bagging'")

    def passes(self, rounds: int) -> int:
        """Number of passes over a client's private data in a run: one per tree."""
        return rounds * self.trees

    def noise(self) -> float:
        """Standard deviation of the noise of one tree ÷ its sensitivity to one row.

        Raises:
            BadValue: not exactly one of ``noise_multiplier`` and ``epsilon`` is set.
        """
        check_level("protocol 'dp_bagging'", self.noise_multiplier or None, self.epsilon or None)
        if self.noise_multiplier:
            return self.noise_multiplier
        steps = self.trees * self.rounds
        return needed_noise(self.epsilon, delta=self.delta, rate=1.0, steps=steps, neighbours="example")

    def spreads(self) -> tuple[float, float]:
        """Standard deviations of the noise of a leaf's G and H."""
        std = self.noise() * SENSITIVITY
        return std, std / (4 * SHARE)

    def proves(self, rounds: int) -> Guarantee:
        """What a client's messages of all rounds satisfy, for one row more or less."""
        stated: dict[str, Any] = {
            "noise_multiplier": self.noise(), "delta": self.delta, "neighbours": "example",
            "steps": rounds * self.trees, "rate": 1.0,
        }  # fmt: skip
        return Guarantee(epsilon=spent_epsilon(**stated), defense="dp_bagging", clip=SENSITIVITY, **stated)

    def play(
        self, setting: Setting, *, recorder: Recorder, rng: Rng, tamper: Tamper | None = None
    ) -> dict[str, Tensor]:
        """Run all rounds. See ``FederationProtocol.play``.

        Raises:
            BadValue: another model than boosted trees, no table, no noise, or settings that documents lack.
        """
        check(setting, tamper, model="boosted_trees")
        how = as_agreed(self, setting.terms.options)
        table, common, capacity = table_of(setting), b"", setting.start[NAME].numel()
        how.noise()
        for number in track(range(setting.rounds), "federation", total=setting.rounds):
            broadcast(setting, number, common, recorder)
            added = []
            for client in range(setting.terms.clients):
                stream = rng.child(f"round/{number}/client/{client}")
                new = how.grow(table, setting.shard(client), common, rng=stream)
                added.append(send(setting, number, client, new, recorder))
            for document in added:
                common = append_trees(common, document)
        return {**setting.start, NAME: tensor_of(common, capacity)}

    def grow(self, table: Row, rows: Batch, common: bytes, *, rng: Rng) -> bytes:
        """A client's new trees on top of a common model, as XGBoost's JSON."""
        inputs, labels = rows.inputs.double().numpy(), rows.labels.double().numpy()
        margin: Any = np.full(len(inputs), math.log(self.base_score / (1 - self.base_score)))
        if common:
            before = model_of(json.loads(common))
            for t, one in enumerate(before.trees):
                margin += one.value[before.reach(t, inputs)]
        draws, shape = rng.child("noise").numpy(), rng.child("shape").numpy()
        cuts, columns = cuts_of(table, self.max_bin), [range(e.start, e.stop) for _, e in table.places()]
        grown, spreads = [], self.spreads()
        for number in range(self.trees):
            tree, leaves = random_tree(cuts, columns, self.max_depth, number, shape)
            reached = reach(tree, inputs)
            p = 1 / (1 + np.exp(-margin))
            size, first = len(tree["left_children"]), leaves[0]
            sums = [
                np.bincount(reached, weights, minlength=size)[first:]
                + spread * draws.normal(size=len(leaves))
                for weights, spread in zip((p - labels, p * (1 - p)), spreads, strict=True)
            ]
            hessian = np.maximum(sums[1], 0.0)
            values = (-self.eta * sums[0] / (hessian + self.reg_lambda)).astype(np.float32).astype(float)
            tree["split_conditions"][first:] = tree["base_weights"][first:] = values.tolist()
            # The sums as they are with noise, below 0 or not: whoever cuts them off hides nothing.
            tree["sum_hessian"][first:] = sums[1].tolist()
            margin += np.concatenate([np.zeros(first), values])[reached]
            grown.append(tree)
        return document_of(grown, len(cuts), self.base_score)


def random_tree(
    cuts: tuple[Any, ...], columns: list[range], depth: int, number: int, draws: np.random.Generator
) -> tuple[dict[str, Any], list[int]]:
    """A full tree of XGBoost's keys, its leaves empty, with cuts at random; and its leaves, the last nodes.

    A column is drawn first, then one of its entries, lest categories of many levels have nearly all cuts.
    """
    inner, size = 2**depth - 1, 2 ** (depth + 1) - 1
    ends = {0: [(0, len(one)) for one in cuts]}
    features, thresholds = [0] * size, [0.0] * size
    for node in range(inner):
        left = [[f for f in own if ends[node][f][0] < ends[node][f][1]] for own in columns]
        column = draws.choice([c for c, own in enumerate(left) if own])
        feature = int(draws.choice(left[column]))
        low, high = ends[node][feature]
        cut = int(draws.integers(low, high))
        features[node] = feature
        thresholds[node] = float(np.float32(np.nextafter(cuts[feature][cut] - STEP, -np.inf)))
        for child, own in ((2 * node + 1, (low, cut)), (2 * node + 2, (cut + 1, high))):
            ends[child] = [*ends[node][:feature], own, *ends[node][feature + 1 :]]
    return full_tree(features, thresholds, number, columns=len(cuts)), list(range(inner, size))


def full_tree(features: list[int], thresholds: list[float], number: int, *, columns: int) -> dict[str, Any]:
    """A full tree in XGBoost's keys: its nodes row by row, the leaves last and empty."""
    size = len(features)
    inner = size // 2
    children = [[2 * n + side if n < inner else LEAF for n in range(size)] for side in (1, 2)]
    return {
        "base_weights": [0.0] * size, "categories": [], "categories_nodes": [], "categories_segments": [],
        "categories_sizes": [], "default_left": [0] * size, "id": number, "left_children": children[0],
        "loss_changes": [0.0] * size, "parents": [2**31 - 1, *((n - 1) // 2 for n in range(1, size))],
        "right_children": children[1], "split_conditions": thresholds, "split_indices": features,
        "split_type": [0] * size, "sum_hessian": [0.0] * size,
        "tree_param": {
            "num_deleted": "0", "num_feature": str(columns), "num_nodes": str(size),
            "size_leaf_vector": "1",
        },
    }  # fmt: skip


def reach(tree: dict[str, Any], inputs: Any) -> Any:
    """The leaf of every row of a full tree, (B,)."""
    at = np.zeros(len(inputs), dtype=np.int64)
    features, cuts = np.array(tree["split_indices"]), np.array(tree["split_conditions"])
    while (np.array(tree["left_children"])[at] != LEAF).all():
        at = 2 * at + 1 + (inputs[np.arange(len(at)), features[at]] >= cuts[at])
    return at


def document_of(trees: list[dict[str, Any]], features: int, base: float) -> bytes:
    """Trees as XGBoost's JSON, inside what the library writes around none."""
    how = {"objective": "binary:logistic", "base_score": base, "nthread": 1}
    empty = xgboost.train(how, xgboost.DMatrix(np.zeros((2, features)), [0, 1]), 0)
    model = json.loads(bytes(empty.save_raw("json")))
    inner = model["learner"]["gradient_booster"]["model"]
    inner |= {"trees": trees, "tree_info": [0] * len(trees), "iteration_indptr": list(range(len(trees) + 1))}
    inner["gbtree_model_param"]["num_trees"] = str(len(trees))
    return json.dumps(model).encode()
