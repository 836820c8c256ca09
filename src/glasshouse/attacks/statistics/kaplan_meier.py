"""Kaplan–Meier curves read back: the data sets of whole patients that a published curve allows, counted.

At an event time S_i / S_{i−1} = 1 − d_i / n_i with d_i deaths among n_i at risk, and n_{i+1} ≤ n_i − d_i:
what is missing was censored in between. A dynamic program over the number at risk and the curve that a chain
itself gives counts those that fit within the rounding; one chain: the curve is the patients.

Source: the equations are the estimator's (Kaplan & Meier 1958); reading curves back is known from
meta-analysis (Guyot et al. 2012, BMC Med. Res. Methodol. 12:9), which gives one plausible data set; the
count of all of them is ours.

Shape letters: T event times, W pairs of numbers at an event time.
"""

from dataclasses import dataclass
from typing import Final, final

import numpy as np
from numpy.typing import NDArray

from glasshouse.errors import Inapplicable
from glasshouse.formats.records import Survival

SUBJECT: Final = "reading of a survival curve"
FULL: Final = 1e-9
"""Error of a curve that was not rounded: that of float64 products."""

GRAIN: Final = 1e-12
"""Curves nearer than this are the same curve."""
FINEST: Final = 1000
"""Points of the grid per error of a rounded curve, where its chains are too many to be told apart."""
COARSEST: Final = 8
MOVES: Final = 4_000_000
"""Steps from one state to the next that are listed, beyond which the grid is used."""
LEAST: Final = 1e-300
BITS: Final = 53
"""Of a float64: counts above are exact to 1e-15 of them."""

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]


@final
@dataclass(frozen=True, kw_only=True)
class Chains:
    """The data sets that fit a curve.

    Attributes:
        times: event times, (T,).
        count: number of data sets, as (deaths, censored) before, between and after event times.
        exact: no fewer fit; False: it is an upper end.
        at_risk: smallest and largest number at risk at each event time that occurs in any of them.
        deaths: smallest and largest number of deaths at each event time.
    """

    times: tuple[float, ...]
    count: int
    exact: bool
    at_risk: tuple[tuple[int, int], ...]
    deaths: tuple[tuple[int, int], ...]

    @property
    def unique(self) -> bool:
        """Only one data set fits: the curve is the patients."""
        return self.count == 1


def other_site(total: Survival, own: Survival) -> Survival:
    """The table of the other one of two sites: the total less one's own, time by time.

    Raises:
        Inapplicable: one of them is a curve, or an own patient is not in the total.

    Examples:
        >>> def table(events):
        ...     zeros, times = np.zeros(2, dtype=int), np.array([1.0, 2.0])
        ...     return Survival(times=times, patients=sum(events), events=np.array(events), censored=zeros)
        >>> other_site(table([2, 1]), table([1, 0])).events.tolist()
        [1, 1]
    """
    if total.events is None or total.censored is None or own.events is None or own.censored is None:
        raise Inapplicable(
            SUBJECT, needs="two tables of counts", got="a curve", fix="count its chains instead"
        )
    at = {float(t): i for i, t in enumerate(total.times)}
    events, censored = total.events.copy(), total.censored.copy()
    for time, died, lost in zip(own.times, own.events, own.censored, strict=True):
        if died + lost and float(time) not in at:
            raise _not_in_total()
        if float(time) in at:
            events[at[float(time)]] -= died
            censored[at[float(time)]] -= lost
    if (events < 0).any() or (censored < 0).any():
        raise _not_in_total()
    there = (events + censored) > 0
    return Survival(
        times=total.times[there],
        patients=total.patients - own.patients,
        events=events[there],
        censored=censored[there],
    )


def _not_in_total() -> Inapplicable:
    return Inapplicable(
        SUBJECT,
        needs="own patients that are all in the total",
        got="more of them at some time than in the total",
        fix="take the table that was sent, in the same units of time",
    )


def count_chains(curve: Survival) -> Chains:
    """Every chain of numbers at risk and deaths that gives the curve, counted by dynamic program.

    The state is the number still there after an event and the curve so far as the chain itself gives it, so
    that each value of a chain's own curve is held against the printed one. Values that cannot be told apart
    at 1e-12 are one state. Where there are too many, values are moved to a grid that is finer than the
    rounding, what that may change is allowed for, and the count is an upper end.

    Raises:
        Inapplicable: a table, which is read and not solved; or no chain fits.

    Examples:
        >>> curve = Survival(times=np.array([1.0, 2.0]), patients=3, curve=np.array([2 / 3, 1 / 3]))
        >>> count_chains(curve).count
        2
    """
    if curve.curve is None:
        raise Inapplicable(SUBJECT, needs="a curve", got="a table, which states its patients", fix="read it")
    error = FULL if curve.digits is None else 0.5 * 10.0**-curve.digits + FULL
    steps = _steps(curve, error)
    walk = _walk(curve.patients, steps, error, grain=GRAIN)
    exact = walk is not None
    if walk is None:
        most = max(len(step.ways) for step in steps)
        finer = min(max(MOVES // most, COARSEST), FINEST)
        walk = _walk(curve.patients, steps, error, grain=error / finer)
    if walk is None or not walk.total:
        raise Inapplicable(
            SUBJECT,
            needs=f"a curve of {curve.patients} patients",
            got="one that no whole numbers give",
            fix="check the number of patients, and the digits of the curve",
        )
    used = [step.ways[kept] for step, kept in zip(steps, walk.used, strict=True)]
    return Chains(
        times=tuple(step.time for step in steps),
        count=walk.total,
        exact=exact,
        at_risk=tuple((int(ways[:, 0].min()), int(ways[:, 0].max())) for ways in used),
        deaths=tuple((int(ways[:, 1].min()), int(ways[:, 1].max())) for ways in used),
    )


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Step:
    """An event time, the curve there, and the pairs (n, d) that its printed neighbours allow, (W, 2)."""

    time: float
    value: float
    ways: Ints


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Walk:
    """All chains: how many, and which pairs occur in whole chains at each event time, positions of ways."""

    total: int
    used: tuple[Ints, ...]


def _walk(patients: int, steps: list[Step], error: float, *, grain: float) -> Walk | None:
    """Chains forwards, then the pairs of whole ones backwards; None: too many states for this grain.

    ``ways[n, k]`` are chains with n still there and a curve of ``values[k]``, on a power of 2 (``scale``).
    """
    exact, scale, room = grain == GRAIN, 0, MOVES
    values, ways = np.ones(1), np.zeros((patients + 1, 1))
    ways[patients, 0] = 1.0
    moves: list[tuple[Ints, Ints, Ints]] = []
    before: list[Bools] = []
    for number, step in enumerate(steps):
        n, d = step.ways.T
        # Those censored since the last event are the difference to n: that many or more were there.
        at_least = np.cumsum(ways[::-1], axis=0)[::-1]
        if exact and len(values) * len(n) > MOVES:
            return None
        after = values[:, None] * (1 - d / n)
        # What moving values to the grid has added up to so far, on top of the rounding.
        slack = error if exact else error + 0.5 * grain * (number + 1)
        at, way = np.nonzero((np.abs(after - step.value) <= slack) & (at_least[n].T > 0))
        keys, to = np.unique(np.round(after[at, way] / grain).astype(np.int64), return_inverse=True)
        size, room = len(keys), room - len(at)
        if exact and (room < 0 or size * (patients + 1) > MOVES):
            return None
        if not size:
            return Walk(total=0, used=())
        there = ways > 0
        # On the way back the grid's values are not told apart: there are too many.
        before.append(_by_state(there, exact=exact))
        listed, nothing = np.unique(way), np.zeros(len(n), dtype=np.int64)
        moves.append((way, at, to) if exact else (listed, nothing[listed], nothing[listed]))
        moved = np.bincount((n - d)[way] * size + to, at_least[n[way], at], (patients + 1) * size)
        values = keys.astype(np.float64) * grain
        shift = int(np.frexp(moved.max())[1])
        # A chain is never lost beside many others, however small its share.
        moved = np.where(moved > 0, np.maximum(np.ldexp(moved, -shift), LEAST), 0.0)
        scale, ways = scale + shift, np.asarray(moved.reshape(patients + 1, size), dtype=np.float64)
    ends = float(ways.sum(1) @ np.arange(1.0, patients + 2))  # censored at the end, or followed up
    whole = round(np.ldexp(ends, min(scale, BITS))) << max(0, scale - BITS)
    return Walk(total=whole, used=_used(steps, moves, before, _by_state(ways > 0, exact=exact)))


def _by_state(there: Bools, *, exact: bool) -> Bools:
    """Which states occur (N, K); of a grid's only the numbers still there, (N, 1)."""
    return there if exact else np.asarray(there.any(1, keepdims=True), dtype=np.bool_)


def _used(
    steps: list[Step],
    moves: list[tuple[Ints, Ints, Ints]],
    before: list[Bools],
    alive: Bools,
) -> tuple[Ints, ...]:
    """Positions of the pairs that occur in whole chains at each event time, from the last one backwards."""
    used = []
    for step, (way, at, to), there in zip(reversed(steps), reversed(moves), reversed(before), strict=True):
        n, d = step.ways.T
        reached = np.cumsum(there[::-1], axis=0)[::-1] > 0
        whole = alive[(n - d)[way], to] & reached[n[way], at]
        used.append(np.unique(way[whole]))
        least = np.full(there.shape[1], len(there))
        np.minimum.at(least, at[whole], n[way[whole]])
        alive = there & (np.arange(len(there))[:, None] >= least)
    return tuple(reversed(used))


def _steps(curve: Survival, error: float) -> list[Step]:
    """Event times with the pairs (n, d) whose ratio 1 − d / n is within the errors of both its ends."""
    assert curve.curve is not None
    steps: list[Step] = []
    before = 1.0
    for time, now in zip(curve.times.tolist(), curve.curve.tolist(), strict=True):
        if before - now <= 2 * FULL:
            continue  # no death: only somebody censored
        lowest = max(0.0, now - error) / min(1.0, before + (error if before < 1 else 0))
        highest = min(1.0, (now + error) / max(before - (error if before < 1 else 0), 1e-300))
        ways: list[tuple[int, int]] = []
        for n in range(1, curve.patients + 1):
            first = max(1, int(np.ceil(n * (1 - highest) - 1e-7)))
            last = min(n, int(np.floor(n * (1 - lowest) + 1e-7)))
            ways += [(n, d) for d in range(first, last + 1)]
        steps.append(Step(time=time, value=now, ways=np.array(ways, dtype=np.int64).reshape(-1, 2)))
        before = now
    return steps
