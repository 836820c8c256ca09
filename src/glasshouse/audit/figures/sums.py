"""What is shown of attacks that sort a round's examples into bins: the bins, the quality, the share alone.

An attack takes part by filing two tensors in its memory: ``thresholds`` (R,), where its bins begin, and
``brightness`` (N,), what it measured on its auxiliary images. The thresholds are quantiles of the fitted
distribution, so their histogram beside that of the brightness shows the fit.

Shape letters: B originals of a round, R bins, N auxiliary images.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, final

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from glasshouse.attacks.base import Reconstruction
from glasshouse.audit.attacking.claims import Outcome
from glasshouse.audit.scoring.judge import Judge
from glasshouse.errors import Undefined
from glasshouse.metrics.interval import Interval, mean_interval
from glasshouse.metrics.match import UNMATCHED, assign, best, mse_table
from glasshouse.results.records import Exhibit
from glasshouse.rng import Rng
from glasshouse.scenario.axes import Cell
from glasshouse.store import read_tensors

RECOVERED: Final = 18.0
"""PSNR, dB, above which an example counts as recovered, as in ``rate_blind``."""
BINS: Final = "adversary/memory.safetensors"
SIZES: Final = ("data.examples", "federation.batch_size")
"""Axes that move m: their points are joined in one chart."""
RATE: Final = "Share recovered against examples in the sum"
ALONE: Final = "alone in their bin, (1 − 1/k)^(m−1)"


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Round:
    """One attacked round: PSNR of each original with its own candidate, and with the best one, dB (B,).

    ``sharing``: examples that share one set of bins; the round's, or one client's if bins are per client.
    """

    blind: NDArray[np.float64]
    paper: NDArray[np.float64]
    sharing: int


def sum_exhibits(
    cell: Cell, label: str, outcomes: Mapping[str, Sequence[Outcome]], judges: Mapping[str, Judge]
) -> list[Exhibit]:
    """Fit of the bins, PSNR of the originals, rates with the theory line, and the numbers as a table."""
    memory = next((m for folder in outcomes if (m := _memory(folder))), None)
    if memory is None:
        return []
    found = [
        _round(claim, judges[folder])
        for folder, every in outcomes.items()
        for outcome in every
        for claim in outcome.claims
        if isinstance(claim, Reconstruction)
    ]
    where, other = _words(cell.axes), _words({k: v for k, v in cell.axes.items() if k not in SIZES})
    suffix = f"{label}" + (f" ({where})" if where else "")
    name = cell.scenario.name
    made = [_fit(name, suffix, memory)]
    if found:
        made += [
            _histogram(name, suffix, found),
            _rates(name, f"{label} ({other})" if other else label, found, len(memory["thresholds"])),
        ]
        made.append(_table(name, where, label, found, len(memory["thresholds"])))
    return made


def _words(axes: Mapping[str, Any]) -> str:
    return ", ".join(f"{name.split('.')[-1]} = {value}" for name, value in axes.items())


def merged(exhibits: Sequence[Exhibit]) -> tuple[Exhibit, ...]:
    """One chart of rates, and one table, per scenario and attack instead of one per cell."""
    out: dict[tuple[str, str, str], Exhibit] = {}
    for number, exhibit in enumerate(exhibits):
        joins = exhibit.title.startswith(RATE)
        key = (exhibit.scenario, exhibit.kind, exhibit.title if joins else f"{exhibit.title} {number}")
        out[key] = _joined(out[key], exhibit) if key in out else exhibit
    return tuple(out.values())


def _memory(folder: str) -> Mapping[str, Tensor] | None:
    path = Path(folder) / BINS
    tensors = read_tensors(path) if path.is_file() else {}
    return tensors if {"thresholds", "brightness"} <= tensors.keys() else None


def _round(claim: Reconstruction, judge: Judge) -> Round:
    truth, owners = judge.truth.batch(claim.about.rounds[0], claim.about.client)
    table = mse_table(truth.inputs, claim.inputs)
    sharing = len(truth) if claim.source is None else int(owners.bincount().max())
    blind, paper = (_psnr(table, pairing(table)) for pairing in (assign, best))
    return Round(blind=blind, paper=paper, sharing=sharing)


def _psnr(table: NDArray[np.float64], pairing: NDArray[np.int64]) -> NDArray[np.float64]:
    """Of the paired ones, at most 100 dB; 0 dB where there is no candidate."""
    error = np.array([table[i, j] if j != UNMATCHED else 1.0 for i, j in enumerate(pairing)])
    return np.asarray(-10 * np.log10(np.clip(error, 1e-10, 1.0)))


def _fit(scenario: str, suffix: str, memory: Mapping[str, Tensor]) -> Exhibit:
    series = [
        {"name": name, "values": memory[key].double().flatten().tolist()}
        for name, key in (("brightness of auxiliary images", "brightness"), ("fit: the bins", "thresholds"))
    ]
    return Exhibit(
        kind="histogram",
        scenario=scenario,
        title=f"Bins and what they were fitted to: {suffix}",
        caption="Bins are quantiles of the fitted distribution: where the two differ, bins fill unevenly.",
        data={"x_label": "brightness that the crafted layer measures", "series": series},
    )


def _histogram(scenario: str, suffix: str, found: Sequence[Round]) -> Exhibit:
    values = np.concatenate([one.blind for one in found]).round(2).tolist()
    return Exhibit(
        kind="histogram",
        scenario=scenario,
        title=f"Quality of single originals: {suffix}",
        caption="Each original with its own candidate (0 dB: none). Two peaks: examples alone in a bin, and "
        f"the others. Above {RECOVERED:g} dB an example counts as recovered.",
        data={"x_label": "PSNR, dB", "series": [{"name": f"m = {len(found[0].blind)}", "values": values}]},
    )


def _rates(scenario: str, label: str, found: Sequence[Round], bins: int) -> Exhibit:
    m, sharing = len(found[0].blind), found[0].sharing
    series: list[dict[str, Any]] = []
    for name, shares in (
        ("each candidate once", _shares(found, "blind")),
        ("papers' way", _shares(found, "paper")),
    ):
        line: dict[str, Any] = {"name": name, "x": [m], "y": [float(np.mean(shares))]}
        if (interval := _interval(shares)) is not None:
            line |= {"low": [max(interval.low, 0.0)], "high": [min(interval.high, 1.0)]}
        series.append(line)
    smaller = sorted({max(2, round(m / 2 ** (step / 2))) for step in range(10)} | {m})
    alone = [(1 - 1 / bins) ** (n * sharing / m - 1) for n in smaller]
    series.append({"name": ALONE, "x": smaller, "y": alone, "null": True})
    return Exhibit(
        kind="lines",
        scenario=scenario,
        title=f"{RATE}: {label}",
        caption="Measured rates beside the share of examples that would be alone in equally filled bins.",
        data={
            "x_label": "examples in the sum, m",
            "y_label": "share recovered",
            "x_log": True,
            "series": series,
        },
    )


def _table(scenario: str, where: str, label: str, found: Sequence[Round], bins: int) -> Exhibit:
    quality = [one.blind[one.blind > RECOVERED].mean() for one in found if (one.blind > RECOVERED).any()]
    row = [
        where or "–",
        len(found),
        len(found[0].blind),
        bins,
        *(_cell(_shares(found, kind)) for kind in ("blind", "paper")),
        _cell(quality, digits=1, top=100.0),
        round((1 - 1 / bins) ** (found[0].sharing - 1), 3),
    ]
    columns = ["setting", "rounds", "examples m", "bins k", "rate, once", "rate, papers' way"]
    return Exhibit(
        kind="table",
        scenario=scenario,
        title=f"{RATE}, in numbers: {label}",
        caption=f"Recovered: PSNR > {RECOVERED:g} dB; PSNR: mean over these. 95 % intervals over rounds.",
        data={"columns": [*columns, "PSNR of these, dB", "alone in theory"], "rows": [row]},
    )


def _shares(found: Sequence[Round], kind: str) -> list[float]:
    return [float((getattr(one, kind) > RECOVERED).mean()) for one in found]


def _interval(values: Sequence[float]) -> Interval | None:
    try:
        return mean_interval(values, rng=Rng.root(0, salt="sums"))
    except Undefined:
        return None


def _cell(values: Sequence[float], *, digits: int = 3, top: float = 1.0) -> str:
    if not values:
        return "–"
    interval = _interval(values)
    if interval is None:
        return f"{np.mean(values):.{digits}f}"
    low, high = max(interval.low, 0.0), min(interval.high, top)
    return f"{interval.value:.{digits}f} [{low:.{digits}f}, {high:.{digits}f}]"


def _joined(one: Exhibit, other: Exhibit) -> Exhibit:
    if one.kind == "table":
        data = {**one.data, "rows": [*one.data["rows"], *other.data["rows"]]}
    else:
        pairs = zip(one.data["series"], other.data["series"], strict=True)
        data = {**one.data, "series": [_longer(a, b) for a, b in pairs]}
    return Exhibit(kind=one.kind, scenario=one.scenario, title=one.title, caption=one.caption, data=data)


def _longer(a: Mapping[str, Any], b: Mapping[str, Any]) -> dict[str, Any]:
    keys = [k for k in ("y", "low", "high") if k in a and k in b]
    points = {x: {k: s[k][i] for k in keys} for s in (a, b) for i, x in enumerate(s["x"])}
    lines = {k: [points[x][k] for x in sorted(points)] for k in keys}
    return {"name": a["name"], "x": sorted(points), **lines, **({"null": True} if a.get("null") else {})}
