"""Certify that a search finished: compare the attack's loss at its claims with that at the ground truth.

A certificate reads claims and writes nothing. Attacks that can return the loss functions of a round's clients
together do so before the ground truth is read, others return that of their first unit. The attack then sees
the ground truth only as the argument of that function, in a process in which no attack runs afterwards.

Shape letters: B images or sentences, C channels, H and W pixels, L tokens.
"""

import json
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Final, final, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from glasshouse.attacks.base import (
    Attack,
    ClassRepresentatives,
    GenerativeAttack,
    Reconstruction,
)
from glasshouse.attacks.objective import SearchedLoss, SearchingAttack, SearchingTogether
from glasshouse.attacks.sequences import Sequences
from glasshouse.audit.attacking.call import AttackTask, adversary_side, stream_of, view_of
from glasshouse.audit.attacking.claims import Outcome, read_outcome
from glasshouse.audit.attacking.isolation import call_on
from glasshouse.audit.attacking.needs import attack_of
from glasshouse.audit.scoring.claims import longest_prefix
from glasshouse.audit.scoring.nulls import batched
from glasshouse.metrics.match import UNMATCHED, assign, mse_table
from glasshouse.models.nearest import TOGETHER, nearest_images
from glasshouse.results.strength import Search
from glasshouse.tensors import copy_to
from glasshouse.transcript.view import View
from glasshouse.truth.record import Truth, read_truth
from glasshouse.wire import Refusal

OTHER_LABEL: Final = 1e6
"""Matching cost of two images with different labels: above any mean squared difference of pixels."""

Piece = tuple[AttackTask, ...]
"""Units of one attack in one group."""

Searched = Reconstruction | ClassRepresentatives | Sequences
SEARCHED: Final = frozenset(claim.kind for claim in get_args(Searched))
"""The kinds of these claims."""


def certificate_pieces(tasks: Iterable[AttackTask]) -> list[Piece]:
    """Group the units of one attack in one group, at most ``TOGETHER`` per piece."""
    groups: dict[tuple[str, Path], list[AttackTask]] = {}
    for task in tasks:
        groups.setdefault((task.folder, Path(task.out).parent), []).append(task)
    return [tuple(part) for every in groups.values() for part in batched(every, TOGETHER)]


def certify_together(piece: Piece) -> list[tuple[str, tuple[Search, ...] | Refusal]]:
    """For each finished unit one row per claim; none if the attack does not declare its loss.

    The units are of one attack in one group. Clients of one round return their loss functions together, and
    the generator's nearest images are searched for all of them in one batch.

    Returns:
        The units' folders, and their rows, or the reason why the attack's loss could not be evaluated.
    """
    attack = attack_of(piece[0].attack, json.loads(piece[0].arguments))
    if not isinstance(attack, SearchingAttack):
        return [(task.out, ()) for task in piece]
    outcomes = {task.out: read_outcome(Path(task.out)) for task in piece}
    losses: dict[tuple[str, str], SearchedLoss] = {}
    for part in _by_round(task for task in piece if _searched(outcomes[task.out])):
        losses |= _losses_together(part, attack)
    units = _Units(piece=piece, attack=attack, outcomes=outcomes, losses=losses)
    return [(task.out, _certify(task, units)) for task in piece]


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class _Units:
    """The units of a piece, and what they share.

    Attributes:
        piece: not empty.
        attack: of all units.
        outcomes: by the unit's folder.
        losses: loss functions that were returned together, by folder and device.
        nearest: the generator's images nearest to the ground truth, by folder; filled on first use.
    """

    piece: Piece
    attack: Attack
    outcomes: Mapping[str, Outcome]
    losses: Mapping[tuple[str, str], SearchedLoss]
    nearest: dict[str, list[Tensor]] = field(default_factory=dict)

    @cached_property
    def truth(self) -> Truth:
        """The ground truth of their group, read only when no claim can change any more."""
        return read_truth(Path(self.piece[0].folder) / "truth")


def _by_round(tasks: Iterable[AttackTask]) -> list[Piece]:
    """The clients of each round, where there are several: they may answer the same broadcast."""
    rounds: dict[tuple[int, ...], list[AttackTask]] = {}
    for task in tasks:
        if task.unit.client is not None:
            rounds.setdefault(task.unit.rounds, []).append(task)
    return [tuple(part) for part in rounds.values() if len(part) > 1]


def _losses_together(part: Piece, attack: Attack) -> dict[tuple[str, str], SearchedLoss]:
    """Loss functions by the unit's folder and the device; empty if the units must be evaluated one by one."""
    if not isinstance(attack, SearchingTogether):
        return {}
    subject = f"search certificates of attack '{part[0].attack}' on {len(part)} units"
    side = adversary_side(part[0].folder, trust_factory=part[0].trust_factory)

    def work(device: str) -> dict[tuple[str, str], SearchedLoss]:
        views = copy_to(tuple(view_of(task, attack, side) for task in part), device)
        updates = (update for view in views for one in view.rounds for update in one.updates.values())
        if any(update.steps > 1 for update in updates):
            return {}  # nothing is shared, and each would keep a model of its own
        losses = attack.objectives(views, rngs=[stream_of(task) for task in part])
        return {(task.out, device): one for task, one in zip(part, losses, strict=True)}

    answer = call_on(part[0].device, work, subject=subject)
    return {} if isinstance(answer, Refusal) else answer


def _view(task: AttackTask, attack: Attack, device: str) -> View:
    side = adversary_side(task.folder, trust_factory=task.trust_factory)
    return copy_to(view_of(task, attack, side), device)


def _certify(task: AttackTask, units: _Units) -> tuple[Search, ...] | Refusal:
    attack, outcome = units.attack, units.outcomes[task.out]
    claims = _searched(outcome)
    if not claims:
        return ()
    subject = f"search certificate of attack '{task.attack}' on {task.unit.name}"
    assert isinstance(attack, SearchingAttack)  # checked by certify_together

    def work(device: str) -> tuple[Search, ...]:
        if shared := units.losses.get((task.out, device)):
            losses = [shared] * len(claims)
        else:
            view = _view(task, attack, device)
            losses = [attack.objective(view, claim.about, rng=stream_of(task)) for claim in claims]
        rows = [
            _certificate(claim, searched, units.truth, outcome, device=device)
            for claim, searched in zip(claims, losses, strict=True)
        ]
        if isinstance(attack, GenerativeAttack):
            if task.out not in units.nearest:
                units.nearest.update(_project(units, attack, _view(task, attack, device)))
            every = zip(rows, claims, losses, units.nearest[task.out], strict=True)
            rows = [replace(row, projected=_loss(s, x, _labels(c), device)) for row, c, s, x in every]
        return tuple(r for r in rows if all(map(math.isfinite, (r.loss, r.truth, r.projected or 0.0))))

    return call_on(task.device, work, subject=subject)


def _searched(outcome: Outcome) -> list[Searched]:
    return [
        c for c in longest_prefix(outcome.claims) if isinstance(c, Searched) and len(_claimed_examples(c))
    ]


def _certificate(
    claim: Searched, searched: SearchedLoss, truth: Truth, outcome: Outcome, *, device: str
) -> Search:
    loss = _loss(searched, _claimed_examples(claim), _labels(claim), device)
    if searched.reached is not None:
        loss = min(loss, searched.reached(claim))
    losses = [_loss(searched, true, y, device) for true, y in _true_orders(claim, truth)]
    client = "" if claim.about.client is None else f", client {claim.about.client}"
    name = f"round {claim.about.rounds[-1]}{client}"
    return Search(name=name, loss=loss, truth=min(losses), noise=searched.noise, curve=outcome.curve)


def _project(units: _Units, attack: GenerativeAttack, view: View) -> dict[str, list[Tensor]]:
    """The generator's images nearest to each unit's ground truth: about the best that a search can find."""
    prior = attack.prior(view.terms, view.grants.auxiliary)
    claims = {out: _searched(outcome) for out, outcome in units.outcomes.items()}
    truths = [next(_true_orders(claim, units.truth)) for every in claims.values() for claim in every]
    images, labels = (torch.cat(column) for column in zip(*truths, strict=True))
    nearest = nearest_images(
        prior, images, labels, latent=attack.latent, run=Path(units.piece[0].folder).parents[1]
    )
    each = iter(torch.split(nearest, [len(one) for one, _ in truths]))
    return {out: [next(each) for _ in every] for out, every in claims.items()}


def _loss(searched: SearchedLoss, images: Tensor, labels: Tensor, device: str) -> float:
    value = searched.loss(images[None].to(device), labels[None].to(device))
    return float(value.detach().double()[0])


def _claimed_examples(claim: Searched) -> Tensor:
    """The claimed images (B, C, H, W), or sentences (B, L)."""
    return claim.tokens if isinstance(claim, Sequences) else claim.inputs.float()


def _labels(claim: Searched) -> Tensor:
    """The claim's labels, (B,); -1 where it has none."""
    labels = None if isinstance(claim, Sequences) else claim.labels
    return torch.full((len(_claimed_examples(claim)),), -1) if labels is None else labels


def _true_orders(claim: Searched, truth: Truth) -> Iterator[tuple[Tensor, Tensor]]:
    """The true images in the order of the claim with the claim's labels; then in the client's own order.

    The second has the true labels, and is yielded if as many are claimed: true images with wrong labels do
    not fit the update, so a claim could have a smaller loss although the ground truth fits; likewise for
    sentences, whose classes attacks infer. Positions without a matching true image keep the claim.
    """
    labels = _labels(claim)
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
        other = (batch.labels[:, None] != labels[None]).flatten(2) if labels.ndim > 1 else None
        differs = other.any(2) if other is not None else batch.labels[:, None] != labels[None]
        cost = cost + OTHER_LABEL * differs.numpy()
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
