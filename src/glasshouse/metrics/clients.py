"""The metrics over clients, as plug-ins; the computations are in ``membership``."""

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, ClassVar, final

import numpy as np
import scipy
from torch import Tensor

from glasshouse.errors import BadValue, Undefined
from glasshouse.limits import Fix, Fraction, check_ranges
from glasshouse.metrics import membership
from glasshouse.metrics.base import ClaimKind, Metric, Reads, ScoreContext, Wording, rate_wording
from glasshouse.metrics.membership import Bools, Floats, Ints
from glasshouse.metrics.statistics.interval import Interval
from glasshouse.registry import Card


class ClientMetric(Metric):
    """Base class of metrics over all clients of several runs.

    An example that is asked about counts even if its like is among the auxiliary data: these do not say which
    client holds it.
    """

    claim: ClassVar[ClaimKind] = "clients"
    reads: ClassVar[Reads] = "decisions"
    interval: ClassVar[Callable[..., Interval]]

    def pool(
        self, claimed: Floats, truth: Bools, *, runs: Ints | None = None, level: float = 0.95
    ) -> Interval:
        """The metric over all clients (N,) with its interval; ``runs`` gives the run of each client."""
        return self.interval(claimed, truth, runs=runs, level=level)

    @abstractmethod
    def values(self, claimed: Floats, truths: Bools) -> Floats:
        """The number alone, (D,), for the claim (N,) against each of several truths (D, N)."""

    def chance(self, context: ScoreContext) -> float | None:
        """Expected value of guessing with the known share of positives; None where it is not known."""
        return context.prior

    def score(self, claimed: Tensor, truth: Tensor, *, context: ScoreContext) -> Floats:
        """The metric of a single run, as an array of one number.

        Raises:
            BadValue: ``truth`` is not one bool per client.
        """
        del context
        member = truth.detach().cpu().numpy()
        if member.dtype != np.bool_:
            raise BadValue(
                "truth about clients", needs="one bool per client", got=f"{member.dtype}", fix="compare first"
            )
        return np.array([self.pool(claimed.detach().double().cpu().numpy(), member).value])


@final
@dataclass(frozen=True, kw_only=True)
class F1(ClientMetric):
    """Harmonic mean of precision and recall over clients; calling a share s at random gets 2φs / (φ + s)."""

    interval = staticmethod(membership.f1)
    card = Card(summary="harmonic mean of precision and recall over clients, exact interval")
    wording = Wording(
        label="F1",
        sentence="found the clients in question (F1 {}; 1 is all of them and nobody else)",
        explanation="Balance of finding all the clients in question and accusing no others: 1 is perfect,"
        " so higher is worse; random guessing reaches about the share of such clients.",
        severity="membership",
        order=30,
        chance="the share of positives, or more: a coin",
        range=(0.0, 1.0),
    )

    def chance(self, context: ScoreContext) -> float | None:
        """The better of two random guesses: calling the known share φ positive, or the claim's share s."""
        if context.prior is None or not context.called:
            return context.prior
        return max(context.prior, 2 * context.prior * context.called / (context.prior + context.called))

    def values(self, claimed: Floats, truths: Bools) -> Floats:
        positives = np.asarray(claimed.sum() + truths.sum(1), dtype=np.float64)
        if not positives.all():
            raise _undefined("f1")
        return 2 * _hit_counts(claimed, truths) / positives


@final
@dataclass(frozen=True, kw_only=True)
class Precision(ClientMetric):
    """Share of the clients called positive that are positive."""

    interval = staticmethod(membership.precision)
    card = Card(summary="share of the clients called positive that are, exact interval")
    wording = rate_wording(
        label="precision",
        sentence="named clients of which {} were right",
        explanation="Share of the accused clients that were accused rightly: higher is worse; random "
        "guessing reaches the share of such clients.",
        severity="membership",
        order=430,
        chance="the share of positives",
    )

    def values(self, claimed: Floats, truths: Bools) -> Floats:
        if not claimed.any():
            raise _undefined("precision")
        return _hit_counts(claimed, truths) / float(claimed.sum())


@final
@dataclass(frozen=True, kw_only=True)
class Recall(ClientMetric):
    """Share of the positive clients that are called positive."""

    interval = staticmethod(membership.recall)
    card = Card(summary="share of the positive clients that are called so, exact interval")
    wording = rate_wording(
        label="recall",
        sentence="found {} of the clients in question",
        explanation="Share of the clients in question that were found: higher is worse; random guessing "
        "finds as large a share as it accuses.",
        severity="membership",
        order=420,
        chance="the share called positive",
    )

    def chance(self, context: ScoreContext) -> float | None:
        """Random calls of the claim's own share of positives; of the known share where that is None."""
        return context.prior if context.called is None else context.called

    def values(self, claimed: Floats, truths: Bools) -> Floats:
        if not truths.any(1).all():
            raise _undefined("recall")
        return _hit_counts(claimed, truths) / np.asarray(truths.sum(1), dtype=np.float64)


@final
@dataclass(frozen=True, kw_only=True)
class Auc(ClientMetric):
    """Probability that a positive client scores above a negative one."""

    interval = staticmethod(membership.auc)
    card = Card(
        summary="probability that a positive client scores above a negative one",
        source="interval: Newcombe 2006, Statistics in Medicine 25(4)",
    )
    wording = Wording(
        label="AUC",
        sentence="told members from others (AUC {}; guessing gets 0.5, 1 is perfect)",
        explanation="How often a client in question gets a higher score than another client: 1 is always,"
        " so higher is worse; random guessing reaches 0.5.",
        severity="membership",
        order=40,
        chance="0.5",
        range=(0.0, 1.0),
    )
    reads = "scores"

    def chance(self, context: ScoreContext) -> float | None:
        del context
        return 0.5

    def most(self, share: Callable[[float], float]) -> float:
        """Midpoint rule at 200 false-positive rates: an upper bound on the area under a concave curve."""
        return float(np.mean([share((i + 0.5) / 200) for i in range(200)]))

    def values(self, claimed: Floats, truths: Bools) -> Floats:
        members, total = truths.sum(1), len(claimed)
        if not ((members > 0) & (members < total)).all():
            raise _undefined("auc")
        ranks = truths @ scipy.stats.rankdata(claimed)
        return np.asarray((ranks - members * (members + 1) / 2) / (members * (total - members)))


@final
@dataclass(frozen=True, kw_only=True)
class TprAtFpr(ClientMetric):
    """Share of the positive clients detected at a false-positive rate of at most ``fpr``.

    Args:
        fpr: tolerated false-positive rate, in (0, 1].
    """

    interval = staticmethod(membership.tpr_at_fpr)
    card = Card(
        summary="share of positive clients found at a tolerated share of false alarms, exact interval",
        source="Carlini et al. 2022, arXiv:2112.03570",
    )
    wording = rate_wording(
        label="found at a low false-alarm rate",
        sentence="found {} of the clients in question at a low rate of false alarms",
        explanation="Share of the clients in question that were found while hardly any other was accused:"
        " higher is worse; random guessing finds as large a share as it may accuse wrongly.",
        severity="membership",
        order=50,
        chance="the tolerated share of false alarms",
    )
    reads = "scores"

    fpr: Annotated[Fraction, Fix("0.01 for one in a hundred")] = 0.01

    def __post_init__(self) -> None:
        check_ranges(self, "metric 'tpr_at_fpr'")

    def chance(self, context: ScoreContext) -> float | None:
        del context
        return self.fpr

    def most(self, share: Callable[[float], float]) -> float:
        return share(self.fpr)

    def values(self, claimed: Floats, truths: Bools) -> Floats:
        order = np.argsort(-claimed, kind="stable")
        scores, truths = claimed[order], truths[:, order]
        others = (~truths).cumsum(1)
        alarms = np.array([membership.tolerated_rank(self.fpr, int(n)) for n in others[:, -1]])
        if not (truths.any(1) & (alarms > 0)).all():
            raise _undefined("tpr_at_fpr")
        at = np.where(alarms <= others[:, -1], (others >= alarms[:, None]).argmax(1), -1)
        threshold = np.where(at >= 0, scores[at], -np.inf)
        return np.asarray((truths & (scores > threshold[:, None])).sum(1) / truths.sum(1), dtype=np.float64)

    def pool(
        self, claimed: Floats, truth: Bools, *, runs: Ints | None = None, level: float = 0.95
    ) -> Interval:
        return self.interval(claimed, truth, fpr=self.fpr, runs=runs, level=level)


def _hit_counts(claimed: Floats, truths: Bools) -> Floats:
    return np.asarray(truths @ claimed, dtype=np.float64)


def _undefined(name: str) -> Undefined:
    return Undefined(
        f"metric '{name}'",
        needs="positive and other clients that determine it",
        got="not enough of them",
        fix="pool more runs",
    )
