"""Which single victims came out? A claim is compared with held-out examples, and with the other claims.

A claim that matches its own victim better than hundreds of held-out examples seems to know the victim. That
is not enough: private examples that are all alike, or nearer to an average than held-out ones, are matched
well by any claim, also by one that never saw an update. So three ranks are taken, and the worst of them
counts:

* the claim's score on its victim among its scores on held-out examples;
* the same for the *lead* over the other claims: what any claim gets on an example cancels;
* the same for the lead in units of the other claims' spread, where there are enough of them.

And no other claim may match the victim as well, nor may claims lead as far on victims that are not theirs.
All comparisons stay within the victim's stratum (its label and group), so that knowing these names nobody.
Where private and held-out examples are not exchangeable (:func:`exchangeable`), ranks among held-out examples
mean nothing, and a claim's lead on its victim is compared with the leads of claims on each other's victims.

Shape letters: n victims and their claims, M held-out examples, N = n + M, D random assignments.
"""

import math
from dataclasses import dataclass
from typing import Final, Literal, final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from glasshouse.errors import BadValue, Undefined
from glasshouse.metrics.statistics.multiplicity import benjamini_hochberg, holm
from glasshouse.rng import Rng

__all__ = ["ALPHA", "NAMED", "NamedVictims", "Question", "exchangeable", "heldout_needed", "name_victims"]

# | number  | what it trades                        | which measurement set it              | where repeated |
# |---------|---------------------------------------|---------------------------------------|----------------|
# | ALPHA   | victims that count as come out        | the share of false leaks elsewhere    | docs/result.md |
# | NAMED   | false names, names; the worst of three| false names stay below 0.03 at this q | docs/result.md |
# |         | ranks makes it conservative           |                                       |                |
# | BY_CLAIM| the same where claims are compared    | at 0.05 nobody was spared: 0.09 false | docs/result.md |
# |         | alone: one rank, so none of that      | names of 50 brighter victims          |                |
# | SPREAD  | false names under shift, power at few | with 2 others the spread's luck takes | tests/verdicts |
# |         | claims                                | four fifths of all names              |                |
# | SHIFTED | names lost by luck, ranks that mislead| 1 exchangeable cell in 20 loses names | tests/verdicts |
ALPHA: Final = 0.025
NAMED: Final = 0.05
BY_CLAIMS: Final = 0.025
SPREAD: Final = 4
SHIFTED: Final = 0.05

Question = Literal["which", "anyone"]
"""``which`` of them came out (Benjamini-Hochberg), or whether ``anyone`` did (Holm)."""
Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
Ints = NDArray[np.int64]


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class NamedVictims:
    """One verdict per victim.

    Attributes:
        p: ``(n,)``, of "the claim knows nothing about its victim but its stratum".
        adjusted: ``(n,)``, p corrected for the number of victims that can be judged; 1 where none can be.
        named: ``(n,)``, adjusted is at most ``level``, no other claim matches the victim as well, and of the
            claims on each other's victims none leads as far (or at most a share of ``ALPHA``).
        best: ``(n,)``, no other claim matches the victim as well, and wrong claims rarely lead as far.
        rank: ``(n,)``, held-out examples that are matched as well, by the worst of the three ranks; where
            held-out examples do not count, pairs of a claim and another's victim that match as well.
        compared: ``(n,)``, what the rank is among.
        judged: ``(n,)``, whether there was enough to compare with to name the victim at all.
        by_claims: held-out examples were not exchangeable with private ones, so claims alone were compared.
    """

    p: Floats
    adjusted: Floats
    named: Bools
    best: Bools
    rank: Ints
    compared: Ints
    judged: Bools
    by_claims: bool

    @property
    def level(self) -> float:
        """The largest adjusted p-value of a victim that is named."""
        return BY_CLAIMS if self.by_claims else NAMED


def name_victims(  # noqa: PLR0913 - one table, and what its rows and columns are
    matches: ArrayLike,
    heldout: ArrayLike,
    strata: ArrayLike | None = None,
    heldout_strata: ArrayLike | None = None,
    *,
    claim_of: ArrayLike | None = None,
    alike: ArrayLike | None = None,
    baseline: tuple[ArrayLike, ArrayLike] | None = None,
    question: Question = "which",
    shift_p: float = 1.0,
) -> NamedVictims:
    """Name the victims whose claims know them, and not merely what they have in common with others.

    Args:
        matches: ``(k, n)``, claim i against victim j, larger leaks more; finite.
        heldout: ``(k, M)``, claim i against held-out example h.
        strata: ``(n,)``, integers: label and group of each victim; None: all are alike.
        heldout_strata: ``(M,)``, the same for held-out examples; None: all are alike.
        claim_of: ``(n,)``, the claim about each victim; None: one each, in order.
        alike: ``(n,)``, from ``exchange.group_alike``: the claim about one member of a group is no stranger
            to another one. None: all can be told apart.
        baseline: scores of a guess that knows each victim's stratum and nothing else, on the victim ``(n,)``,
            and on every held-out example ``(n, M)``. With it a victim whose stratum holds too few held-out
            examples is compared with all of them, by the lead over that guess too.
        question: which correction for the number of victims.
        shift_p: of :func:`exchangeable`; below 0.05 claims alone are compared.

    Raises:
        BadValue: shapes do not fit, or a score is not finite.

    Source:
        Vovk, Lindsay, Nouretdinov & Gammerman 2003, "Mondrian confidence machine" (ranks within strata);
        Bates et al. 2023, Annals of Statistics 51(1) (conformal p-values and their correction). The two leads
        and the maximum over the three ranks are ours.

    Examples:
        >>> rng = np.random.default_rng(0)
        >>> scores = rng.normal(size=(8, 8)) + 50 * np.eye(8)
        >>> name_victims(scores, rng.normal(size=(8, 400))).named.all()
        np.True_
    """
    given = _Given.of(matches, heldout, strata, heldout_strata, claim_of, alike)
    n = len(given.strata)
    by_claims = shift_p < SHIFTED
    wrong = {int(stratum): given.wrong_leads(int(stratum)) for stratum in np.unique(given.strata)}
    rank, compared = np.zeros(n, dtype=np.int64), np.zeros(n, dtype=np.int64)
    best = np.zeros(n, dtype=bool)
    for j in range(n):
        own, column = given.claim_of[j], given.matches[:, j]
        strangers = given.strangers(j)
        peers = np.intersect1d(strangers, given.claim_of[given.strata == given.strata[j]])
        # No other claim may match as well, and leads as long on others' victims must be rare.
        pairs = wrong[int(given.strata[j])]
        ahead = int((pairs >= _lead(column, own, peers)).sum()) if len(pairs) else 0
        rare = ahead == 0 or (1 + ahead) / (1 + len(pairs)) <= ALPHA
        best[j] = rare and bool((column[strangers] < column[own]).all())
        if by_claims:
            rank[j], compared[j] = ahead, len(pairs)
            continue
        rank[j], compared[j] = _rank_among_heldout(given, j, peers, baseline)
    p = (1 + rank) / (1 + compared)
    judged = 1 / (1 + compared) <= ALPHA
    adjusted = _adjusted(p, judged, question)
    return NamedVictims(
        p=p,
        adjusted=adjusted,
        named=judged & best & (adjusted <= (BY_CLAIMS if by_claims else NAMED)),
        best=best,
        rank=rank,
        compared=compared,
        judged=judged,
        by_claims=by_claims,
    )


def _rank_among_heldout(
    given: "_Given", j: int, peers: NDArray[np.int64], baseline: tuple[ArrayLike, ArrayLike] | None
) -> tuple[int, int]:
    """How many held-out examples match the claim about victim j as well, at worst, and of how many."""
    own, column = given.claim_of[j], given.matches[:, j]
    same = given.heldout_of(given.strata[j], everybody=baseline is not None)
    distinct = len(np.unique(given.alike[np.isin(given.claim_of, peers)]))
    ranks = _ranks(column, given.heldout[:, same], own, peers, spread=distinct >= SPREAD)
    if baseline is not None:
        known, known_others = (np.asarray(one, dtype=np.float64) for one in baseline)
        leads = given.heldout[own, same] - known_others[j, same]
        ranks.append(int((leads >= column[own] - known[j]).sum()))
    return max(ranks), len(same)


def _adjusted(p: Floats, judged: NDArray[np.bool_], question: Question) -> Floats:
    """p-values corrected for the number of victims judged; 1 for all others."""
    adjusted = np.ones(len(p))
    if judged.any():
        adjusted[judged] = (benjamini_hochberg if question == "which" else holm)(p[judged])
    return adjusted


def heldout_needed(victims: int) -> int:
    """Held-out examples of one stratum that suffice to judge, and to name one of ``victims`` corrected.

    Examples:
        >>> heldout_needed(1), heldout_needed(20)
        (39, 399)
    """
    return math.ceil(max(1 / ALPHA, victims / NAMED) - 1e-9) - 1


def exchangeable(
    distances: ArrayLike,
    private: ArrayLike,
    strata: ArrayLike | None = None,
    *,
    rng: Rng,
    draws: int = 999,
) -> float:
    """The p-value of "private and held-out examples come from one distribution"; small: they do not.

    Three statistics, the smallest p-value of which is itself tested on the same random assignments (min-p):
    the energy distance between the two samples; the mean rank of private examples by how far they are from
    all others; and the most extreme such rank, for single examples that are unlike all others or unusually
    average.

    Args:
        distances: ``(N, N)``, between all examples, symmetric and finite, by their modality.
        private: ``(N,)``, True for private examples: at least one of both kinds.
        strata: ``(N,)``, integers: assignments are exchanged within equal ones.
        rng: stream of the assignments.
        draws: number of random assignments.

    Raises:
        BadValue: shapes do not fit, or a distance is not finite.
        Undefined: no private or no held-out example.

    Source:
        Székely & Rizzo 2013, "Energy statistics", J. Statistical Planning and Inference 143(8); Westfall &
        Young 1993, "Resampling-Based Multiple Testing", section 2.3 (min-p).

    Examples:
        >>> x = np.concatenate([np.full(8, 9.0), np.arange(40.0) / 10])
        >>> exchangeable(abs(x[:, None] - x), np.arange(48) < 8, rng=Rng.root(0))
        0.001
    """
    d, mask = np.asarray(distances, dtype=np.float64), np.asarray(private, dtype=bool)
    groups = np.zeros(len(mask), dtype=np.int64) if strata is None else np.asarray(strata)
    if d.shape != (len(mask), len(mask)) or groups.shape != mask.shape or not np.isfinite(d).all():
        raise BadValue(
            "exchangeability of private and held-out examples",
            needs="a finite distance for each of N x N pairs, and private and strata of length N",
            got=f"distances {d.shape}, private {mask.shape}, strata {groups.shape}",
            fix="take the distances from the modality of the examples",
        )
    if mask.all() or not mask.any():
        raise Undefined(
            "exchangeability of private and held-out examples",
            needs="at least one of both",
            got=f"{int(mask.sum())} private of {len(mask)}",
            fix="set data.heldout",
        )
    masks = np.tile(mask, (1 + draws, 1))
    random = rng.child("assignments").numpy()
    for group in np.unique(groups):
        members = np.flatnonzero(groups == group)
        masks[1:, members] = random.permuted(masks[1:, members], axis=1)
    statistics = _differences(d, masks.astype(np.float64))  # (3, D), larger: more different
    # Each statistic's own p-value on every assignment, then the smallest of the three, then its p-value.
    ascending = np.sort(statistics, axis=1)
    least = np.min(
        [1 - np.searchsorted(a, v - 1e-12) / len(v) for a, v in zip(ascending, statistics, strict=True)],
        axis=0,
    )
    return float((least <= least[0] + 1e-12).mean())


def _ranks(column: Floats, heldout: Floats, j: int, peers: Ints, *, spread: bool) -> list[int]:
    """How many held-out examples claim j matches as well, by score, by lead, and by lead over spread."""
    ranks = [int((heldout[j] >= column[j]).sum())]
    if len(peers) == 0:
        return ranks
    lead = _lead(column, j, peers)
    leads = heldout[j] - heldout[peers].mean(0)
    ranks.append(int((leads >= lead).sum()))
    if spread and len(peers) > 1:  # a single peer has no spread
        # A common scale keeps the quotient finite where all other claims agree.
        floor = 1e-9 * max(float(np.abs(column).max()), float(np.abs(heldout).max()), 1e-300)
        scale = max(float(column[peers].std(ddof=1)), floor)
        scales = np.maximum(heldout[peers].std(0, ddof=1), floor)
        ranks.append(int((leads / scales >= lead / scale).sum()))
    return ranks


def _lead(column: Floats, claim: int, peers: Ints) -> float:
    """How much better a claim matches one example than its peers do."""
    return float(column[claim] - column[peers].mean()) if len(peers) else float(column[claim])


def _differences(d: Floats, masks: Floats) -> Floats:
    """The three statistics of :func:`exchangeable` for each assignment, (3, D)."""
    inside = masks.sum(1)
    outside = masks.shape[1] - inside
    towards = masks @ d  # (D, N): summed distance of each example to the private ones
    within = (towards * masks).sum(1)
    across = towards.sum(1) - within
    total = float(d.sum())
    rest = total - 2 * across - within
    energy = 2 * across / (inside * outside) - within / inside**2 - rest / outside**2
    order = d.sum(1).argsort(kind="stable").argsort(kind="stable")
    centred = np.abs(order - (len(d) - 1) / 2)
    mean = np.abs(masks @ order / inside - (len(d) - 1) / 2)
    extreme = (masks * centred).max(1)
    return np.stack([energy, mean, extreme])


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class _Given:
    """What :func:`name_victims` was given, checked."""

    matches: Floats
    heldout: Floats
    strata: Ints
    heldout_strata: Ints
    claim_of: Ints
    alike: Ints

    @classmethod
    def of(cls, matches: ArrayLike, heldout: ArrayLike, *labels: ArrayLike | None) -> "_Given":
        s, h = np.asarray(matches, dtype=np.float64), np.asarray(heldout, dtype=np.float64)
        k, n = s.shape if s.ndim == 2 else (0, 0)
        columns = h.shape[1] if h.ndim == 2 else 0
        usual = (np.zeros(n), np.zeros(columns), np.arange(n), np.arange(n))
        strata, others, claim_of, alike = (
            np.asarray(default if one is None else one).astype(np.int64)
            for one, default in zip(labels, usual, strict=True)
        )
        shapes = strata.shape == claim_of.shape == alike.shape == (n,) and others.shape == (columns,)
        fits = shapes and h.shape == (k, columns) and n > 0 and bool(((claim_of >= 0) & (claim_of < k)).all())
        if not (fits and np.isfinite(s).all() and np.isfinite(h).all()):
            raise BadValue(
                "verdicts on single victims",
                needs="finite scores (k, n) and (k, M), strata (n,) and (M,), and a claim for each victim",
                got=f"{s.shape}, {h.shape}, {strata.shape}, {others.shape}, {claim_of.shape}",
                fix="leave out victims whose claims cannot be scored",
            )
        return cls(matches=s, heldout=h, strata=strata, heldout_strata=others, claim_of=claim_of, alike=alike)

    def strangers(self, victim: int) -> Ints:
        """The claims that are about neither the victim nor one too alike to tell from it."""
        related = self.claim_of[self.alike == self.alike[victim]]
        return np.setdiff1d(np.arange(len(self.matches)), related)

    def heldout_of(self, stratum: int, *, everybody: bool) -> Ints:
        """Held-out examples of a stratum; all, if these are too few for all victims and all may be taken."""
        same = np.flatnonzero(self.heldout_strata == stratum)
        if everybody and len(same) < heldout_needed(len(self.strata)):
            return np.arange(len(self.heldout_strata))
        return same

    def wrong_leads(self, stratum: int) -> Floats:
        """The leads of claims on victims of others, in one stratum: what a lead is worth without an update.

        The victim's own claim is left out of the others, so that a true match makes no wrong one look worse.
        """
        leads = []
        for k in np.flatnonzero(self.strata == stratum):
            others = np.intersect1d(self.strangers(int(k)), self.claim_of[self.strata == stratum])
            if len(others) < 2:
                continue
            scores = self.matches[others, k]
            leads.append(scores - (scores.sum() - scores) / (len(others) - 1))
        return np.concatenate(leads) if leads else np.zeros(0)
