"""Certify that a search finished: compare the attack's loss at its claims with that at the ground truth.

A certificate could always have failed. The attack's loss is asked about the claim (twice), the ground truth
and held-out examples as decoys, in an order that nobody can predict, in a sealed process that knows none of
them beforehand and in which nothing that it learns can stay (:mod:`glasshouse.audit.sealed`). Only a loss
that is finite, says the same of the claim both times and tells the truth from the decoys certifies anything
(``results.strength.Certificate``).

Shape letters: B examples of one claim, S decoys.
"""

import math
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Final, final

import torch
from torch import Tensor, nn

from glasshouse.attacks.base import Attack, GenerativeAttack
from glasshouse.attacks.objective import SearchedLoss, SearchingAttack, SearchingTogether
from glasshouse.audit.attacking.call import AttackTask, adversary_side, stream_of, view_of
from glasshouse.audit.attacking.claims import Outcome, read_outcome
from glasshouse.audit.attacking.isolation import call_on
from glasshouse.audit.attacking.needs import attack_of, refusal_of
from glasshouse.audit.scoring.judging.decoys import (
    SEARCHED,
    Point,
    Searched,
    claimed_examples,
    claimed_labels,
    decoys_for,
    true_orders,
)
from glasshouse.audit.scoring.measure import batched
from glasshouse.audit.scoring.pair import longest_prefix
from glasshouse.audit.sealed import Answered, Sealed, is_foreign, sealed, told
from glasshouse.cache import digest, load_or_make
from glasshouse.cache import folder as cache_folder
from glasshouse.errors import GlasshouseError
from glasshouse.metrics.statistics.distributions import fisher_combination
from glasshouse.models.nearest import FOLDER, TOGETHER, invert_generator
from glasshouse.results.strength import Certificate, Search
from glasshouse.store import read_tensors
from glasshouse.tensors import copy_to
from glasshouse.transcript.view import View
from glasshouse.truth.record import Truth, read_truth
from glasshouse.wire import Batch, Refusal

__all__ = ["SEARCHED", "Piece", "certificate_of", "certificate_pieces", "certify_together"]

_SIDE: Final = ("transcript", "own", "grants", "adversary")
_REPEATS: Final = 1e-4
"""Two values of one loss at one point differ by at most this share, from the rounding of a graphics card."""

Piece = tuple[AttackTask, ...]
"""Units of one attack in one group."""


def certificate_pieces(tasks: Iterable[AttackTask]) -> list[Piece]:
    """Group the units of one attack in one group, at most ``TOGETHER`` per piece."""
    groups: dict[tuple[str, Path], list[AttackTask]] = {}
    for task in tasks:
        groups.setdefault((task.folder, Path(task.out).parent), []).append(task)
    return [tuple(part) for every in groups.values() for part in batched(every, TOGETHER)]


def certify_together(piece: Piece) -> list[tuple[str, tuple[Search, ...]]]:
    """For each finished unit one row per claim; none if the attack does not declare its loss.

    The units are of one attack in one group. A row whose loss could not be evaluated says why, and counts as
    an unfinished search.

    Returns:
        The units' folders, and their rows.
    """
    first = piece[0]
    attack = attack_of(first.plugin)
    claims = {task.out: _searched(read_outcome(Path(task.out))) for task in piece}
    if not isinstance(attack, SearchingAttack) or not any(claims.values()):
        return [(task.out, ()) for task in piece]
    subject = f"search certificates of attack '{first.attack}' on {len(piece)} units"
    served = _Served(piece=piece, attack=attack, claims=claims)
    group, foreign = Path(first.folder), is_foreign(attack)
    # The sealed process sees the adversary's part of this group, and the cache if nobody else wrote its code.
    show, hide = (
        [group / part for part in _SIDE],
        [group.parents[1] if group.parent.name in ("cells", "planted") else group],
    )
    (hide if foreign else show).append(cache_folder())
    try:
        with sealed(served.answer, hide=hide, show=show, foreign=foreign, subject=subject) as judge:
            failed = judge.ask(("build",))[0]
            rows = _Rows(
                piece=piece,
                claims=claims,
                judge=judge,
                generative=isinstance(attack, GenerativeAttack),
                foreign=foreign,
            )
            return [(task.out, rows.of(task, failed.get(task.out, ""))) for task in piece]
    except GlasshouseError as error:
        reason = refusal_of(error)
        words = f"{reason.needs}: {reason.got}"
    except (AttributeError, LookupError, TypeError, ValueError):
        if not foreign:  # else its code may have answered anything
            raise
        words = "its code answered with something else than losses"
    return [(task.out, tuple(_failed(claim, words) for claim in claims[task.out])) for task in piece]


@final
@dataclass(kw_only=True, eq=False)
class _Served:
    """What runs in the sealed process: it builds the attack's losses, and evaluates them where asked.

    Attributes:
        piece: units of one attack.
        attack: with its settings.
        claims: by the unit's folder; never shown to the attack as claims.
        losses: by the unit's folder, one per claim, with the device that they run on.
    """

    piece: Piece
    attack: Attack
    claims: Mapping[str, Sequence[Searched]]
    losses: dict[str, tuple[list[SearchedLoss], str]] = field(default_factory=dict)

    def answer(self, question: Any) -> Answered:
        """Answer ``build``, ``loss`` of a claim at points, ``prior``, or ``nearest`` images."""
        kind, *details = question
        answers: dict[str, Callable[..., Answered]] = {
            "build": self._build,
            "loss": self._loss,
            "prior": self._prior,
            "nearest": self._nearest,
        }
        return answers[kind](*details)

    def _build(self) -> Answered:
        """Build all losses; answer with the reasons why some could not be, by the unit's folder."""
        for part in _by_round(task for task in self.piece if self.claims[task.out]):
            self.losses |= self._build_together(part)
        failed = {}
        for task in self.piece:
            if not self.claims[task.out] or task.out in self.losses:
                continue
            subject = f"search certificate of attack '{task.attack}' on {task.unit.name}"

            def work(device: str, task: AttackTask = task) -> tuple[list[SearchedLoss], str]:
                view = self._view(task, device)
                assert isinstance(self.attack, SearchingAttack)  # checked by certify_together
                abouts = [claim.about for claim in self.claims[task.out]]
                return [self.attack.objective(view, about, rng=stream_of(task)) for about in abouts], device

            built = call_on(_place(task.device), work, subject=subject)
            if isinstance(built, Refusal):
                failed[task.out] = built.got
            else:
                self.losses[task.out] = built
        return failed, {}

    def _build_together(self, part: Piece) -> dict[str, tuple[list[SearchedLoss], str]]:
        """Losses of a round's clients, whose model is prepared once; empty: build them one by one."""
        if not isinstance(self.attack, SearchingTogether):
            return {}
        attack, subject = (
            self.attack,
            f"search certificates of attack '{part[0].attack}' on {len(part)} units",
        )

        def work(device: str) -> dict[str, tuple[list[SearchedLoss], str]]:
            views = tuple(self._view(task, device) for task in part)
            updates = (update for view in views for one in view.rounds for update in one.updates.values())
            if any(update.steps > 1 for update in updates):
                return {}  # nothing is shared, and each would keep a model of its own
            losses = attack.objectives(views, rngs=[stream_of(task) for task in part])
            return {
                task.out: ([one] * len(self.claims[task.out]), device)
                for task, one in zip(part, losses, strict=True)
            }

        built = call_on(_place(part[0].device), work, subject=subject)
        return {} if isinstance(built, Refusal) else built

    def _loss(self, out: str, number: int, points: Sequence[Point]) -> Answered:
        """The loss at each point, and how far losses may differ and count as equal; or the reason why not."""
        every, device = self.losses[out]
        searched = every[number]

        def work(_: str) -> list[float]:
            return [_evaluate(searched, images, labels, device) for images, labels in points]

        values = call_on("cpu", work, subject=f"loss of attack '{self.piece[0].attack}'")
        if isinstance(values, Refusal):
            return {"reason": values.got}, {}
        return {"losses": values, "noise": float(searched.noise)}, {}

    def _prior(self, out: str) -> Answered:
        """A digest of the generator's weights, if it has any, and the size of its latent vectors."""
        prior, latent = self._generator(out)
        weights = prior.state_dict() if isinstance(prior, nn.Module) else {}
        return {"weights": digest(weights) if weights else "", "latent": latent}, {}

    def _nearest(self, out: str, images: Tensor, labels: Tensor) -> Answered:
        """The generator's images nearest to ``images`` (N, ...)."""
        prior, latent = self._generator(out)
        weights = prior.state_dict() if isinstance(prior, nn.Module) else {}
        device = next(iter(weights.values()), images).device
        return None, {"images": invert_generator(prior, images.to(device), labels.to(device), latent=latent)}

    def _generator(self, out: str) -> tuple[Any, int]:
        assert isinstance(self.attack, GenerativeAttack)
        task = next(task for task in self.piece if task.out == out)
        view = self._view(task, _place(task.device))
        return self.attack.prior(view.terms, view.grants.auxiliary), self.attack.latent

    def _view(self, task: AttackTask, device: str) -> View:
        side = adversary_side(task.folder, trust_factory=task.trust_factory)
        return copy_to(view_of(task, self.attack, side), device)


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class _Rows:
    """What runs beside it: it knows the truth, asks the sealed process about points, and compares.

    Attributes:
        piece: units of one attack in one group.
        claims: by the unit's folder.
        judge: the sealed process, whose losses are built.
        generative: the attack's images come from a generator.
        foreign: the attack is of another package, whose words must not leave the sealed process.
    """

    piece: Piece
    claims: Mapping[str, Sequence[Searched]]
    judge: Sealed
    generative: bool
    foreign: bool = False

    @cached_property
    def truth(self) -> Truth:
        """The ground truth of the group, read only once all losses are built."""
        return read_truth(Path(self.piece[0].folder) / "truth")

    @cached_property
    def heldout(self) -> Batch | None:
        """The group's held-out examples; None: it has none."""
        file = Path(self.piece[0].folder) / "truth" / "scoring.safetensors"
        tensors = read_tensors(file) if file.is_file() else {}
        parts = [
            Batch(inputs=tensors[f"{role}.inputs"], labels=tensors[f"{role}.labels"])
            for role in ("heldout", "spare")
            if f"{role}.inputs" in tensors
        ]
        if not parts:
            return None
        return Batch(
            inputs=torch.cat([part.inputs for part in parts]),
            labels=torch.cat([part.labels for part in parts]),
        )

    def of(self, task: AttackTask, failed: str) -> tuple[Search, ...]:
        """The rows of one unit; ``failed``: why its losses could not be built."""
        claims = self.claims[task.out]
        if failed:
            return tuple(_failed(claim, told(failed, foreign=self.foreign)) for claim in claims)
        curve = read_outcome(Path(task.out)).curve
        rows = [replace(self._row(task.out, i, claim), curve=curve) for i, claim in enumerate(claims)]
        if self.generative and any(not row.reason for row in rows):
            rows = self._projected(task.out, rows)
        return tuple(rows)

    def _row(self, out: str, number: int, claim: Searched) -> Search:
        """Ask about the claim, the truth and the decoys in random order, and compare the answers."""
        orders = list(true_orders(claim, self.truth))
        decoys = decoys_for(claim, self.truth, self.heldout)
        own: Point = (claimed_examples(claim), claimed_labels(claim))
        points = [own, own, *orders, *(point for variants in decoys for point in variants)]
        # The order must not be known in advance, and no result depends on it.
        order = random.SystemRandom().sample(range(len(points)), len(points))
        answer, _ = self.judge.ask(("loss", out, number, [points[i] for i in order]))
        if "reason" in answer:
            return _failed(claim, told(str(answer["reason"]), foreign=self.foreign))
        losses, noise = [0.0] * len(points), float(answer["noise"])
        for place, value in zip(order, answer["losses"], strict=True):
            losses[place] = float(value)
        if not all(map(math.isfinite, (*losses, noise))) or noise < 0:
            return _failed(claim, "a loss, or its noise, that is no finite number")
        first, second, *rest = losses
        true, false = rest[: len(orders)], rest[len(orders) :]
        variants = len(decoys[0]) if decoys else 1
        return Search(
            name=_name(claim),
            loss=max(first, second),
            truth=min(true),
            noise=noise,
            decoys=tuple(min(false[i : i + variants]) for i in range(0, len(false), variants)),
            reproduced=abs(first - second) <= _REPEATS * max(abs(first), abs(second)) + noise,
        )

    def _projected(self, out: str, rows: Sequence[Search]) -> list[Search]:
        """The rows with the loss at the generator's images nearest to the truth, asked last."""
        known = self.judge.ask(("prior", out))[0]
        result = []
        for number, (row, claim) in enumerate(zip(rows, self.claims[out], strict=True)):
            images, labels = next(true_orders(claim, self.truth))

            def make(_: object, images: Tensor = images, labels: Tensor = labels) -> dict[str, Tensor]:
                return dict(self.judge.ask(("nearest", out, images, labels))[1])

            # Several cells need the same images. The key holds the attack: no plug-in answers for another.
            key = {"attack": self.piece[0].attack, **known, "images": images, "labels": labels}
            run = Path(self.piece[0].folder).parents[1]
            nearest = (load_or_make(FOLDER, key, make, root=run) if known["weights"] else make(None))[
                "images"
            ]
            answer, _ = self.judge.ask(("loss", out, number, [(nearest, claimed_labels(claim))]))
            value = answer.get("losses", [None])[0]
            result.append(row if row.reason or value is None else replace(row, projected=float(value)))
        return result


def certificate_of(searches: Sequence[Search]) -> Certificate | None:
    """What the searches of one finding certify together; None: the attack searches for nothing.

    That the loss tells the truth from decoys is tested over all victims (Fisher's combination of the truth's
    ranks): under noise it may not do so for each, and a loss that does not is no ground for "finished".

    Args:
        searches: rows of :func:`certify_together`, one per claim.
    """
    if not searches:
        return None
    ranks = [(1 + one.rank) / (1 + len(one.decoys)) for one in searches if one.decoys and not one.reason]
    told = fisher_combination(ranks) if ranks else 1.0
    curves = [one for one in searches if len(one.curve) > 1]
    reasons = sorted({one.reason for one in searches if one.reason})
    return Certificate(
        searches=len(searches),
        unfinished=sum(not one.finished for one in searches),
        told_p=told,
        falling=sum(one.falling for one in curves),
        drawn=len(curves),
        reason="; ".join(reasons),
    )


def _searched(outcome: Outcome) -> list[Searched]:
    claims = longest_prefix(outcome.claims)
    return [c for c in claims if isinstance(c, Searched) and len(claimed_examples(c))]


def _by_round(tasks: Iterable[AttackTask]) -> list[Piece]:
    """The clients of each round, where there are several: they may answer the same broadcast."""
    rounds: dict[tuple[int, ...], list[AttackTask]] = {}
    for task in tasks:
        if task.unit.client is not None:
            rounds.setdefault(task.unit.rounds, []).append(task)
    return [tuple(part) for part in rounds.values() if len(part) > 1]


def _place(device: str) -> str:
    """The device of a loss: a fork cannot use a graphics card that its parent has begun to use."""
    begun: bool = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]  # torch has no types for it
    return "cpu" if begun else device


def _evaluate(searched: SearchedLoss, images: Tensor, labels: Tensor, device: str) -> float:
    value = searched.loss(images[None].to(device), labels[None].to(device))
    return float(value.detach().double()[0])


def _name(claim: Searched) -> str:
    client = "" if claim.about.client is None else f", client {claim.about.client}"
    return f"round {claim.about.rounds[-1]}{client}"


def _failed(claim: Searched, reason: str) -> Search:
    return Search(name=_name(claim), loss=0.0, truth=0.0, noise=0.0, reason=reason)
