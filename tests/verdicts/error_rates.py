"""How often each word is wrong: audits simulated one by one into a file; stopped, the simulation goes on.

``python -m tests.verdicts.error_rates FILE SEEDS`` adds audits to FILE until it has as many seeds of every
entry of the tables; ``... FILE --tables`` prints the tables of ``docs/result.md`` as CSV.
"""

import json
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tests.verdicts.audits import (
    DATA,
    METRICS,
    NULLS,
    SHARES,
    STRENGTHS,
    VICTIMS,
    null_audit,
    row_of,
    weak_audit,
    whole_audit,
)

from glasshouse.results.judgement import OUT

INTERVALS = ("value", "gain", "exchange", "nothing", "label", "twin")
"""Intervals that a finding prints, those of the rungs by their names."""

FEWEST = 8
"""Audits of one kind whose mean counts as the truth."""

Row = Mapping[str, Any]
Key = tuple[str, str, str, int, str, int]
"""Kind of audit, its data (or share, or strength), null, n, metric, seed."""


def keys(audits: int) -> Iterator[Key]:
    """The audits to simulate, one seed of everything after the other."""
    for seed in range(audits):
        # Three seeds of a metric for the nine nulls, three by turns: each null meets every metric.
        metric = METRICS[seed // 3 % len(METRICS)]
        for n in VICTIMS:
            names = list(NULLS)[seed % 3 :: 3]
            yield from (("nothing leaks", data, null, n, metric, seed) for data in DATA for null in names)
            yield from (("whole", f"{share:.2f}", "", n, metric, seed) for share in SHARES)
            yield from (("weak", f"{noise:g}", "", n, metric, seed) for noise in STRENGTHS)


def simulate(key: Key) -> dict[str, Any]:
    """One audit."""
    kind, what, null, n, metric, seed = key
    if kind == "nothing leaks":
        return row_of(null_audit(n, null, what, seed, metric))
    if kind == "weak":
        return row_of(weak_audit(n, float(what), seed, metric))
    share = next(one for one in SHARES if f"{one:.2f}" == what)
    return row_of(*whole_audit(n, share, seed, metric))


def read(file: Path) -> dict[Key, Row]:
    """What was simulated so far."""
    rows = {}
    for line in file.read_text().splitlines() if file.is_file() else []:
        with suppress(ValueError):  # a line that was cut when the simulation was stopped
            row = json.loads(line)
            rows[tuple(row["key"])] = row
    return rows


def run(file: Path, audits: int, wanted: Callable[[Key], bool] = lambda key: True) -> dict[Key, Row]:
    """Simulate what is missing; return all."""
    rows = dict(read(file))
    file.parent.mkdir(parents=True, exist_ok=True)
    cut = file.is_file() and not file.read_text().endswith("\n")
    with file.open("a") as out:
        out.write("\n" if cut else "")
        for key in filter(wanted, keys(audits)):
            if key not in rows:
                rows[key] = {"key": list(key), **simulate(key)}
                out.write(json.dumps(rows[key]) + "\n")
                out.flush()
    return rows


def rate(rows: Sequence[Row], wrong: Callable[[Row], bool]) -> float:
    return float(np.mean([wrong(row) for row in rows])) if rows else float("nan")


def leaks(row: Row) -> bool:
    return row["verdict"] in OUT


def too_alike(row: Row) -> bool:
    return row["verdict"] == "too alike"


def silent(row: Row) -> bool:
    return row["verdict"] == "no leak found"


def by(rows: Mapping[Key, Row], kind: str, *places: int) -> dict[tuple[Any, ...], list[Row]]:
    """The audits of one kind, grouped by parts of their keys."""
    found = defaultdict(list)
    for key, row in rows.items():
        if key[0] == kind:
            found[tuple(key[place] for place in places)].append(row)
    return dict(found)


def covered(
    rows: Mapping[Key, Row], kind: str, *places: int
) -> Iterator[tuple[tuple[Any, ...], str, float, int]]:
    """How often each printed interval holds the truth: (group, interval, share, audits).

    Of audits in which nothing leaks the truth is the mean over all of one kind; there, a gain is one over the
    null adversary that its finding names: over another one it is another number. Where victims come out whole
    it is computed from the share and the means of those that do and those that do not.
    """
    for group, own in by(rows, kind, *places).items():
        for name in INTERVALS:
            same_null = defaultdict(list)
            for row in own:
                one = row["rungs"].get(name) if name in ("nothing", "label", "twin") else row[name]
                if one is not None:
                    by_null = name == "gain" and kind == "nothing leaks"
                    same_null[row["quoted"] if by_null else ""].append((row, one))
            for kept in same_null.values():
                if len(kept) < FEWEST:
                    continue
                truth = true_mean(kept, group, kind)
                holds = [low - 1e-9 <= truth <= high + 1e-9 for _, (_, low, high) in kept]
                yield group, name, float(np.mean(holds)), len(holds)


def true_mean(kept: Sequence[tuple[Row, Sequence[float]]], group: tuple[Any, ...], kind: str) -> float:
    """The mean over all audits of a kind; the luck of how many came out whole is taken out by regression."""
    values = np.array([one[0] for _, one in kept])
    if kind != "whole":
        return float(values.mean())
    n = next(part for part in group if isinstance(part, int))
    share = next(one for one in SHARES if f"{one:.2f}" in group)
    out = np.array([row["out"] for row, _ in kept]) / n
    if np.ptp(out) == 0:
        return float(values.mean())
    slope, intercept = np.polyfit(out, values, 1)
    return float(intercept + slope * share)


def tables(rows: Mapping[Key, Row]) -> Iterable[str]:
    """The tables as lines of CSV."""
    yield "what,of,n,metric,audits,rate"
    for (data, n), own in sorted(by(rows, "nothing leaks", 1, 3).items()):
        judged = [row for row in own if row["judged"]]
        for name, value in (
            ("false leaks", rate(own, leaks)),
            ("too alike", rate(own, too_alike)),
            ("false names", rate(own, lambda row: row["named"] > 0)),
            ("single victims judged", len(judged) / len(own)),
        ):
            yield f"{name},{data},{n},all,{len(own)},{value:.4f}"
    for (null, metric), own in sorted(by(rows, "nothing leaks", 2, 4).items()):
        name = null.replace(",", " and")
        yield f"false leaks by null,{name},all,{metric},{len(own)},{rate(own, leaks):.4f}"
    for (share, n), own in sorted(by(rows, "whole", 1, 3).items()):
        most = [row for row in own if row["most"] is not None]
        for name, value in (
            ("no leak found", rate(own, silent)),
            ("leaks", rate(own, leaks)),
            ("somebody named", rate(own, lambda row: row["named"] > row["false_names"])),
            ("somebody falsely named", rate(own, lambda row: row["false_names"] > 0)),
            (
                "upper end of the share covers",
                rate(most, lambda row, s=share: row["most"] >= float(s) - 0.005),
            ),
        ):
            yield f"{name},{share} whole,{n},all,{len(own)},{value:.4f}"
    for (noise, n, metric), own in sorted(by(rows, "weak", 1, 3, 4).items()):
        yield f"power: leaks,noise {noise},{n},{metric},{len(own)},{rate(own, leaks):.4f}"
        named = float(np.mean([row["named"] / n for row in own]))
        yield f"power: share named,noise {noise},{n},{metric},{len(own)},{named:.4f}"
    for kind, places in (("nothing leaks", (1, 3, 4, 2)), ("whole", (1, 3, 4)), ("weak", (1, 3, 4))):
        pooled: dict[tuple[Any, ...], list[tuple[float, int]]] = defaultdict(list)
        for group, name, share, count in covered(rows, kind, *places):
            pooled[kind, group[0], group[1], group[2], name].append((share, count))
        for (_, what, n, metric, name), parts in sorted(pooled.items()):
            total = sum(count for _, count in parts)
            mean = sum(share * count for share, count in parts) / total
            yield f"coverage: {name},{kind} {what},{n},{metric},{total},{mean:.4f}"


if __name__ == "__main__":
    torch.set_num_threads(1)
    place = Path(sys.argv[1])
    if sys.argv[2] == "--tables":
        print("\n".join(tables(read(place))))
    else:
        run(place, int(sys.argv[2]))
