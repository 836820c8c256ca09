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

__all__ = ["ALPHA", "NamedVictims", "Question", "exchangeable", "heldout_needed", "name_victims"]

# | number  | what it trades                        | which measurement set it              | where repeated |
# |---------|---------------------------------------|---------------------------------------|----------------|
# | ALPHA   | false names against names             | the share of false leaks elsewhere    | docs/result.md |
# | SPREAD  | false names under shift, power at few | with 2 others the spread's luck takes | tests/verdicts |
# |         | claims                                | four fifths of all names              |                |
# | SHIFTED | names lost by luck, ranks that mislead| 1 exchangeable cell in 20 loses names | tests/verdicts |
ALPHA: Final = 0.025
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
        named: ``(n,)``, adjusted is at most ``ALPHA``, no other claim matches the victim as well, and of the
            claims on each other's victims none leads as far (or at most a share of ``ALPHA``).
        rank: ``(n,)``, held-out examples that are matched as well, by the worst of the three ranks; where
            held-out examples do not count, pairs of a claim and another's victim that match as well.
        compared: ``(n,)``, what the rank is among.
        judged: ``(n,)``, whether there was enough to compare with to name the victim at all.
        by_claims: held-out examples were not exchangeable with private ones, so claims alone were compared.
    """

    p: Floats
    adjusted: Floats
    named: Bools
    rank: Ints
    compared: Ints
    judged: Bools
    by_claims: bool


def name_victims(
    matches: ArrayLike,
    heldout: ArrayLike,
    strata: ArrayLike | None = None,
    heldout_strata: ArrayLike | None = None,
    *,
    baseline: tuple[ArrayLike, ArrayLike] | None = None,
    question: Question = "which",
    shift_p: float = 1.0,
) -> NamedVictims:
    """Name the victims whose claims know them, and not merely what they have in common with others.

    Args:
        matches: ``(n, n)``, claim i against victim j, larger leaks more; finite. Members of a group of
            victims too alike must be merged first (``exchange.merge_alike``).
        heldout: ``(n, M)``, claim i against held-out example h.
        strata: ``(n,)``, integers: label and group of each victim; None: all are alike.
        heldout_strata: ``(M,)``, the same for held-out examples; None: all are alike.
        baseline: scores of a guess that knows each victim's stratum and nothing else, on the victim ``(n,)``,
            and on every held-out example ``(n, M)``. With it a victim whose stratum holds too few held-out
            examples is compared with all of them by the lead over that guess; without it, it is not judged.
        question: which correction for the number of victims.
        shift_p: of :func:`exchangeable`; below .05 claims alone are compared.

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
    s, h, groups, others = _check(matches, heldout, strata, heldout_strata)
    n = len(s)
    by_claims = shift_p < SHIFTED
    rank, compared = np.zeros(n, dtype=np.int64), np.zeros(n, dtype=np.int64)
    best = np.array([bool((np.delete(s[:, j], j) < s[j, j]).all()) for j in range(n)])
    for j in range(n):
        peers = np.flatnonzero((groups == groups[j]) & (np.arange(n) != j))
        pairs = _wrong_leads(s, np.append(peers, j))
        ahead = int((pairs >= _lead(s[:, j], j, peers)).sum()) if len(pairs) else 0
        best[j] &= ahead == 0 or (1 + ahead) / (1 + len(pairs)) <= ALPHA
        if by_claims:
            rank[j], compared[j] = ahead, len(pairs)
            continue
        # Held-out examples of the victim's stratum where they suffice, else all with the guess that knows it.
        same = np.flatnonzero(others == groups[j])
        thin = len(same) < heldout_needed(1)
        if thin and baseline is not None:
            same = np.arange(h.shape[1])
        ranks = _ranks(s[:, j], h[:, same], j, peers)
        if baseline is not None:
            known, known_others = (np.asarray(one, dtype=np.float64) for one in baseline)
            ranks.append(int((h[j, same] - known_others[j, same] >= s[j, j] - known[j]).sum()))
        rank[j], compared[j] = max(ranks), len(same)
    p = (1 + rank) / (1 + compared)
    judged = 1 / (1 + compared) <= ALPHA
    adjusted = np.ones(n)
    if judged.any():
        adjusted[judged] = (benjamini_hochberg if question == "which" else holm)(p[judged])
    return NamedVictims(
        p=p,
        adjusted=adjusted,
        named=judged & best & (adjusted <= ALPHA),
        rank=rank,
        compared=compared,
        judged=judged,
        by_claims=by_claims,
    )


def heldout_needed(victims: int) -> int:
    """Held-out examples of one stratum that suffice to name one of ``victims`` after the correction.

    Examples:
        >>> heldout_needed(1), heldout_needed(20)
        (39, 799)
    """
    return math.ceil(victims / ALPHA - 1e-9) - 1


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


def _ranks(column: Floats, heldout: Floats, j: int, peers: Ints) -> list[int]:
    """How many held-out examples claim j matches as well, by score, by lead, and by lead over spread."""
    ranks = [int((heldout[j] >= column[j]).sum())]
    if len(peers) == 0:
        return ranks
    lead = _lead(column, j, peers)
    leads = heldout[j] - heldout[peers].mean(0)
    ranks.append(int((leads >= lead).sum()))
    if len(peers) >= SPREAD:
        # A common scale keeps the quotient finite where all other claims agree.
        floor = 1e-9 * max(float(np.abs(column).max()), float(np.abs(heldout).max()), 1e-300)
        spread = max(float(column[peers].std(ddof=1)), floor)
        spreads = np.maximum(heldout[peers].std(0, ddof=1), floor)
        ranks.append(int((leads / spreads >= lead / spread).sum()))
    return ranks


def _lead(column: Floats, claim: int, peers: Ints) -> float:
    """How much better a claim matches one example than its peers do."""
    return float(column[claim] - column[peers].mean()) if len(peers) else float(column[claim])


def _wrong_leads(s: Floats, stratum: Ints) -> Floats:
    """The leads of claims on each other's victims in one stratum: what a lead is worth without an update.

    The victim's own claim is left out of the others, so that a true match does not make wrong ones look
    worse.
    """
    if len(stratum) < 3:
        return np.zeros(0)
    block = s[np.ix_(stratum, stratum)]
    size = len(block)
    rest = block.sum(0) - np.diagonal(block)  # per victim: all claims but its own
    leads = block - (rest - block) / (size - 2)
    return np.asarray(leads[~np.eye(size, dtype=bool)])


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


def _check(
    matches: ArrayLike, heldout: ArrayLike, strata: ArrayLike | None, heldout_strata: ArrayLike | None
) -> tuple[Floats, Floats, Ints, Ints]:
    s, h = np.asarray(matches, dtype=np.float64), np.asarray(heldout, dtype=np.float64)
    n = len(s)
    groups = np.zeros(n, dtype=np.int64) if strata is None else np.asarray(strata, dtype=np.int64)
    columns = h.shape[1] if h.ndim == 2 else 0
    others = np.zeros(columns, np.int64) if heldout_strata is None else np.asarray(heldout_strata, np.int64)
    fits = (
        s.shape == (n, n) and h.shape == (n, columns) and groups.shape == (n,) and others.shape == (columns,)
    )
    if not (fits and n > 0 and np.isfinite(s).all() and np.isfinite(h).all()):
        raise BadValue(
            "verdicts on single victims",
            needs="finite scores (n, n) and (n, M), strata (n,) and (M,)",
            got=f"{s.shape}, {h.shape}, {groups.shape}, {others.shape}",
            fix="leave out victims whose claims cannot be scored",
        )
    return s, h, groups, others
