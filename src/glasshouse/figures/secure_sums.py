"""Attacks that sort the examples of an aggregate into bins: fit of the bins, quality, share recovered.

Drawn if an active attack stores two tensors in its memory, as ``Crafted.memory`` requires for attacks with
bins: ``thresholds`` (R,), the lower ends of the bins, and ``brightness`` (N,), measured on the auxiliary
images. Thresholds are quantiles of the fitted distribution: comparing their histogram with that of the
brightness shows the fit.

Shape letters: B originals of a round, R bins, N auxiliary images.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Final, final

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from glasshouse.attacks.base import Reconstruction
from glasshouse.errors import Undefined
from glasshouse.figures.base import CellEvidence, GroupEvidence, Part
from glasshouse.metrics.match import UNMATCHED, assign, best, mse_table
from glasshouse.metrics.statistics.interval import Interval, mean_interval
from glasshouse.registry import Card
from glasshouse.results.exhibits import Place, Series, histogram, line, lines, table
from glasshouse.results.records import Exhibit
from glasshouse.rng import Rng

RECOVERED: Final = 18.0
"""PSNR, dB, above which an example counts as recovered, as in ``rate_blind``."""
SIZES: Final = ("data.examples", "federation.batch_size")
"""Axes that change m: cells along them are joined in one chart."""
RATE: Final = "Share recovered against examples in the sum"
ALONE: Final = "alone in their bin, (1 − 1/k)^(m−1)"
Values = NDArray[np.float64]


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Round:
    """One attacked round.

    Attributes:
        blind: PSNR of each original with its assigned candidate (one-to-one), dB, (B,).
        paper: PSNR of each original with its best candidate, the papers' pairing, dB, (B,).
        sharing: number of examples that share one set of bins: those of the round, or of one client if bins
            are per client.
    """

    blind: Values
    paper: Values
    sharing: int


@final
@dataclass(frozen=True, kw_only=True)
class SecureSums:
    """Fit of the bins, PSNR of the originals, rates compared with theory, and the numbers as a table."""

    card: ClassVar[Card] = Card(summary="attacks on secure sums: bins, quality, share recovered against m")
    reads: ClassVar[frozenset[type | Part]] = frozenset({"active"})

    def draw(self, cell: CellEvidence) -> Iterator[Exhibit]:
        for attack in cell.attacks:
            memory = next((m for group in attack.groups if (m := _bins(group))), None)
            if memory is None:
                continue
            yield _fit(cell.place, attack.label, memory)
            rounds = [r for group in attack.groups for r in _rounds(group)]
            if rounds:
                yield _quality(cell.place, attack.label, rounds)
                yield _rates(cell.place, attack.label, rounds, len(memory["thresholds"]))
                yield _table(cell.place, attack.label, rounds, len(memory["thresholds"]))


def _bins(group: GroupEvidence) -> Mapping[str, Tensor] | None:
    memory = group.federation.memory()
    return memory if {"thresholds", "brightness"} <= memory.keys() else None


def _rounds(group: GroupEvidence) -> Iterator[Round]:
    for claim in group.of(Reconstruction):
        truth, owners = group.truth.batch(claim.about.rounds[0], claim.about.client)
        errors = mse_table(truth.inputs, claim.inputs)
        sharing = len(truth) if claim.source is None else int(owners.bincount().max())
        blind, paper = (_psnr(errors, pairing(errors)) for pairing in (assign, best))
        yield Round(blind=blind, paper=paper, sharing=sharing)


def _psnr(errors: Values, pairing: NDArray[np.int64]) -> Values:
    """PSNR of paired originals, at most 100 dB; 0 dB without a candidate."""
    paired = np.array([errors[i, j] if j != UNMATCHED else 1.0 for i, j in enumerate(pairing)])
    return np.asarray(-10 * np.log10(np.clip(paired, 1e-10, 1.0)))


def _fit(place: Place, label: str, memory: Mapping[str, Tensor]) -> Exhibit:
    brightness, bins = (memory[key].double().flatten().tolist() for key in ("brightness", "thresholds"))
    return histogram(
        place,
        f"Bins and what they were fitted to: {label}",
        "Bins are quantiles of the fitted distribution: where the two differ, bins fill unevenly.",
        label="brightness that the crafted layer measures",
        values={"brightness of auxiliary images": brightness, "fit: the bins": bins},
    )


def _quality(place: Place, label: str, rounds: Sequence[Round]) -> Exhibit:
    values = np.concatenate([one.blind for one in rounds]).round(2).tolist()
    return histogram(
        place,
        f"Quality of single originals: {label}",
        "Each original with its own candidate (0 dB: none). Two peaks: examples alone in a bin, and "
        f"the others. Above {RECOVERED:g} dB an example counts as recovered.",
        label="PSNR, dB",
        values={f"m = {len(rounds[0].blind)}": values},
    )


def _rates(place: Place, label: str, rounds: Sequence[Round], bins: int) -> Exhibit:
    """Rates of one cell; cells of other sizes are joined with it."""
    m, sharing = len(rounds[0].blind), rounds[0].sharing
    kinds = {"each candidate once": [r.blind for r in rounds], "papers' way": [r.paper for r in rounds]}
    smaller = sorted({max(2, round(m / 2 ** (step / 2))) for step in range(10)} | {m})
    alone = [(1 - 1 / bins) ** (n * sharing / m - 1) for n in smaller]
    joined = place.without(*SIZES)
    return lines(
        joined,
        f"{RATE}: {label}",
        "Measured rates beside the share of examples that would be alone in equally filled bins.",
        labels=("examples in the sum, m", "share recovered"),
        series=[
            *(_rate(name, m, _shares(qualities)) for name, qualities in kinds.items()),
            line(ALONE, smaller, alone, null=True),
        ],
        spacing="log",
        join=joined.heading(label),
    )


def _rate(name: str, m: int, shares: Sequence[float]) -> Series:
    interval = _interval(shares)
    band = None if interval is None else ([max(interval.low, 0.0)], [min(interval.high, 1.0)])
    return line(name, [m], [float(np.mean(shares))], band=band)


def _table(place: Place, label: str, rounds: Sequence[Round], bins: int) -> Exhibit:
    """A table row for one cell; the rows of other cells are joined with it."""
    recovered = [one.blind[one.blind > RECOVERED] for one in rounds]
    row = [
        place.words or "–",
        len(rounds),
        len(rounds[0].blind),
        bins,
        _number(_shares([one.blind for one in rounds])),
        _number(_shares([one.paper for one in rounds])),
        _number([float(values.mean()) for values in recovered if len(values)], digits=1, top=100.0),
        round((1 - 1 / bins) ** (rounds[0].sharing - 1), 3),
    ]
    columns = ["setting", "rounds", "examples m", "bins k", "rate, once", "rate, papers' way"]
    return table(
        Place(scenario=place.scenario, run=place.run),
        f"{RATE}, in numbers: {label}",
        f"Recovered: PSNR > {RECOVERED:g} dB; PSNR: mean over these. 95 % intervals over rounds.",
        columns=[*columns, "PSNR of these, dB", "alone in theory"],
        rows=[row],
        join=label,
    )


def _shares(qualities: Sequence[Values]) -> list[float]:
    return [float((quality > RECOVERED).mean()) for quality in qualities]


def _interval(values: Sequence[float]) -> Interval | None:
    try:
        return mean_interval(values, rng=Rng.root(0, salt="sums"))
    except Undefined:
        return None


def _number(values: Sequence[float], *, digits: int = 3, top: float = 1.0) -> str:
    if not values:
        return "–"
    interval = _interval(values)
    if interval is None:
        return f"{np.mean(values):.{digits}f}"
    low, high = max(interval.low, 0.0), min(interval.high, top)
    return f"{interval.value:.{digits}f} [{low:.{digits}f}, {high:.{digits}f}]"
