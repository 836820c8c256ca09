"""Points at which a search is certified: the truth in the order of a claim, and held-out decoys beside it.

Shape letters: B examples of one claim, S decoys; the shape of one example follows.
"""

from collections.abc import Iterator
from typing import Final, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from glasshouse.attacks.base import ClassRepresentatives, Reconstruction
from glasshouse.attacks.sequences import Sequences
from glasshouse.metrics.match import UNMATCHED, assign, mse_table
from glasshouse.rng import Rng
from glasshouse.truth.record import Truth
from glasshouse.wire import Batch

__all__ = [
    "DECOYS",
    "SEARCHED",
    "Point",
    "Searched",
    "claimed_examples",
    "claimed_labels",
    "decoys_for",
    "true_orders",
]

# | number      | what it trades                       | which measurement set it           | where repeated |
# |-------------|--------------------------------------|------------------------------------|----------------|
# | DECOYS      | certainty of a claim, forward passes | 19: a blind loss passes 1 in 20    | strength.py    |
# | OTHER_LABEL | pairs of a label before near ones    | above any squared pixel difference | -              |
DECOYS: Final = 19
OTHER_LABEL: Final = 1e6

Searched = Reconstruction | ClassRepresentatives | Sequences
SEARCHED: Final = frozenset(claim.kind for claim in get_args(Searched))
"""The kinds of these claims."""

Point = tuple[Tensor, Tensor]
"""Examples (B, ...) and labels (B,) at which a loss is evaluated."""


def decoys_for(claim: Searched, truth: Truth, heldout: Batch | None) -> list[tuple[Point, ...]]:
    """``DECOYS`` stand-ins for the truth, each at every labelling at which the truth is asked about.

    A decoy takes the truth's places with held-out examples of the same labels, so that a loss that only knows
    labels cannot tell it. Without held-out examples those of other clients are taken; without any, or if they
    have another shape, there are no decoys.

    Args:
        claim: whose truth they stand beside.
        truth: of the group.
        heldout: examples of no client; None: there are none.
    """
    orders = list(true_orders(claim, truth))
    placed, labels = orders[0]
    pool = heldout if heldout is not None and len(heldout) else _of_others(claim, truth)
    if pool is None or pool.inputs.shape[1:] != placed.shape[1:]:
        return []
    labellings = [labels]
    if len(orders) > 1 and not torch.equal(orders[1][1].sort().values, labels.sort().values):
        labellings.append(orders[1][1])
    # Places that no true example fits keep the claim, in the truth as in the decoys.
    changed = (placed != claimed_examples(claim)).flatten(1).any(1)
    random = Rng.root(0).child("decoys").child(str(claim.about)).numpy()
    result = []
    for _ in range(DECOYS):
        chosen = pool.inputs[_alike(pool, labellings[-1], random)].to(placed.dtype)
        examples = torch.where(changed.reshape(-1, *[1] * (placed.ndim - 1)), chosen, placed)
        result.append(tuple((examples, labelling) for labelling in labellings))
    return result


def _of_others(claim: Searched, truth: Truth) -> Batch | None:
    """The private examples of other updates."""
    if isinstance(claim, ClassRepresentatives):
        return None
    used = {
        row
        for key in truth.used
        if key[0] == claim.about.rounds[-1] and claim.about.client in (None, key[1])
        for row in truth.used[key].rows()
    }
    rest = [row for row in range(len(truth.private)) if row not in used]
    return truth.private.pick(torch.tensor(rest)) if rest else None


def _alike(pool: Batch, labels: Tensor, random: np.random.Generator) -> Tensor:
    """For each label a random row of the pool with it, or any row if there is none."""
    rows = []
    for label in labels.tolist():
        same = torch.nonzero(pool.labels == label).flatten() if pool.labels.ndim == 1 else torch.zeros(0)
        rows.append(int(same[random.integers(len(same))]) if len(same) else int(random.integers(len(pool))))
    return torch.tensor(rows)


def claimed_examples(claim: Searched) -> Tensor:
    """The claimed images (B, C, H, W), or sentences (B, L)."""
    return claim.tokens if isinstance(claim, Sequences) else claim.inputs.float()


def claimed_labels(claim: Searched) -> Tensor:
    """The claim's labels, (B,); -1 where it has none."""
    labels = None if isinstance(claim, Sequences) else claim.labels
    return torch.full((len(claimed_examples(claim)),), -1) if labels is None else labels


def true_orders(claim: Searched, truth: Truth) -> Iterator[tuple[Tensor, Tensor]]:
    """The true images in the order of the claim with the claim's labels; then in the client's own order.

    The second has the true labels, and is yielded if as many are claimed: true images with wrong labels do
    not fit the update, so a claim could have a smaller loss although the ground truth fits; likewise for
    sentences, whose classes attacks infer. Positions without a matching true image keep the claim.
    """
    labels = claimed_labels(claim)
    if isinstance(claim, ClassRepresentatives):
        private = truth.private
        yield torch.stack([private.inputs[private.labels == j].mean(0) for j in labels.tolist()]), labels
        return
    batch, _ = truth.batch(claim.about.rounds[-1], claim.about.client)
    if isinstance(claim, Sequences):
        differ = (batch.inputs[:, None] != claim.tokens[None]).double().mean(2).numpy()
        yield _placed(claim.tokens, batch.inputs, assign(differ)), labels
        if len(batch) == len(labels):
            yield batch.inputs, batch.labels
        return
    cost = mse_table(batch.inputs, claim.inputs)
    if claim.labels is not None:
        # A target may have several parts (labels, masks): one other part makes it another target.
        other = (batch.labels[:, None] != labels[None]).reshape(len(batch), len(labels), -1).any(2)
        cost = cost + OTHER_LABEL * other.numpy()
    placed = _placed(claim.inputs.float(), batch.inputs, assign(cost))
    yield placed, labels
    comparable = claim.labels is not None and len(labels) == len(batch)
    if comparable and not (torch.equal(labels, batch.labels) and torch.equal(placed, batch.inputs)):
        yield batch.inputs, batch.labels


def _placed(claimed: Tensor, true: Tensor, pairing: NDArray[np.int64]) -> Tensor:
    """``claimed`` with the paired examples replaced by the true ones."""
    places, result = torch.from_numpy(pairing), claimed.clone()
    matched = places != UNMATCHED
    result[places[matched]] = true[matched]
    return result
