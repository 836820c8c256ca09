"""Kaplan–Meier curves read back: the data sets of whole patients that a published curve allows, counted.

At an event time S_i / S_{i−1} = 1 − d_i / n_i with d_i deaths among n_i at risk, and n_{i+1} ≤ n_i − d_i:
what is missing was censored in between. A dynamic program over the number at risk counts the chains that
fit within the rounding; one chain: the curve is the patients.

Source: the equations are the estimator's (Kaplan & Meier 1958); reading curves back is known from
meta-analysis (Guyot et al. 2012, BMC Med. Res. Methodol. 12:9), which gives one plausible data set; the
count of all of them is ours.

Shape letters: T event times.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, final

import numpy as np

from glasshouse.errors import Inapplicable
from glasshouse.formats.records import Survival

SUBJECT: Final = "reading of a survival curve"
FULL: Final = 1e-9
"""Error of a curve that was not rounded: that of float64 products."""

Chain = tuple[int, int]
"""Patients at risk and deaths at one event time."""


@final
@dataclass(frozen=True, kw_only=True)
class Chains:
    """The data sets that fit a curve.

    Attributes:
        times: event times, (T,).
        count: number of data sets, as (deaths, censored) before, between and after event times.
        at_risk: smallest and largest number at risk at each event time that occurs in any of them.
        deaths: smallest and largest number of deaths at each event time.
    """

    times: tuple[float, ...]
    count: int
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

    Exact integers: the count may have hundreds of digits. The state is the number still there after an event
    and, for a rounded curve, nothing else: each ratio is only known within the errors of both its ends, so
    that the count is an upper end where the curve was rounded.

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
    forward: list[dict[int, int]] = [{curve.patients: 1}]
    for ways in (s for _, s in steps):
        forward.append(_after(forward[-1], ways))
    if not forward[-1]:
        raise Inapplicable(
            SUBJECT,
            needs=f"a curve of {curve.patients} patients",
            got="one that no whole numbers give",
            fix="check the number of patients, and the digits of the curve",
        )
    # Backwards: how many ends are possible from each number still there, so that ranges come from whole
    # chains.
    last = forward[-1]
    count = sum(ways * (left + 1) for left, ways in last.items())  # censored at the end, or followed up
    alive: set[int] = set(last)
    at_risk, deaths = [], []
    for (_, ways), before in zip(reversed(steps), reversed(forward[:-1]), strict=True):
        most = max(before)
        used = [(n, d) for n, d in ways if n <= most and n - d in alive]
        at_risk.append((min(n for n, _ in used), max(n for n, _ in used)))
        deaths.append((min(d for _, d in used), max(d for _, d in used)))
        least = min(n for n, _ in used)
        alive = {left for left in before if left >= least}
    return Chains(
        times=tuple(time for time, _ in steps),
        count=count,
        at_risk=tuple(reversed(at_risk)),
        deaths=tuple(reversed(deaths)),
    )


def _steps(curve: Survival, error: float) -> list[tuple[float, list[Chain]]]:
    """Event times with the pairs (n, d) whose ratio 1 − d / n is within the curve's error."""
    assert curve.curve is not None
    steps, before = [], 1.0
    for time, now in zip(curve.times.tolist(), curve.curve.tolist(), strict=True):
        if before - now <= 2 * FULL:
            continue  # no death: only somebody censored
        lowest = max(0.0, now - error) / min(1.0, before + (error if before < 1 else 0))
        highest = min(1.0, (now + error) / max(before - (error if before < 1 else 0), 1e-300))
        ways = []
        for n in range(1, curve.patients + 1):
            first = max(1, int(np.ceil(n * (1 - highest) - 1e-7)))
            last = min(n, int(np.floor(n * (1 - lowest) + 1e-7)))
            ways += [(n, d) for d in range(first, last + 1)]
        steps.append((time, ways))
        before = now
    return steps


def _after(before: Mapping[int, int], ways: list[Chain]) -> dict[int, int]:
    """Chains by the number left after an event; those censored since the last one are the difference to n."""
    highest = max(before, default=0)
    at_least = [0] * (highest + 2)  # chains in which so many or more were left before
    for n in range(highest, -1, -1):
        at_least[n] = at_least[n + 1] + before.get(n, 0)
    after: dict[int, int] = {}
    for n, d in ways:
        if n <= highest and at_least[n]:
            after[n - d] = after.get(n - d, 0) + at_least[n]
    return after
