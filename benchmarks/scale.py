"""Scaling of time, memory and disk: ``python -m benchmarks.scale [--out runs/scale] [--chart FILE]``.

Every point is a separate process that simulates a federation (clients, rounds) or runs a few iterations of an
attack (batch, side, restarts) on images of noise: the cost does not depend on their content. Existing points
are kept. The exponent is the slope of a line through the logarithms of the last three points.
``--processes 1 2`` runs 100 rounds with 200 of 1,000 clients in one and two processes, alternating, and
prints wall-clock seconds.
"""

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any, Final

import numpy as np

from glasshouse.audit.attacking.call import pieces, run_piece
from glasshouse.audit.plan import group_tasks
from glasshouse.audit.simulation.group import Group, simulate
from glasshouse.executors.base import peak_memory
from glasshouse.process import prepare_process
from glasshouse.scenario.load import from_dict, write_resolved

AXES: Final[dict[str, tuple[int, ...]]] = {
    "clients": (10, 100, 316, 1000),
    "rounds": (3, 10, 30, 100),
    "rounds_of_1000": (3, 30, 300),
    "prolin": (3, 30, 300),
    "batch": (1, 4, 16),
    "side": (32, 64, 128, 224),
    "restarts": (1, 4, 16),
}
FEDERATION: Final[dict[str, Any]] = {
    "name": "growth",
    "data": {"examples": 10, "auxiliary": 20, "heldout": 20},
    "model": {"name": "lenet5"},
    "federation": {"protocol": "fedavg", "clients": 50, "batch_size": 10},
    "audit": {"metrics": ["psnr"], "utility": False, "controls": False, "victims": 1},
}
SEARCH: Final[dict[str, Any]] = {
    **FEDERATION,
    "data": {"examples": 1, "auxiliary": 20, "heldout": 20},
    "model": {"name": "convnet", "width": 16},
    "federation": {"protocol": "fedsgd", "clients": 1, "batch_size": 1},
}
PROLIN: Final[dict[str, Any]] = {
    "name": "prolin",
    "looks_for": "membership",
    "method": {"pairs": 10, "pool": 0, "detector": "discriminant"},
    "every": 300,
    "iterations": 20,
}
"""Few shadow clients and iterations: what grows with the rounds and clients is the rest."""
THOUSAND: Final = ("rounds_of_1000", "prolin")
ITERATIONS: Final = 5
QUANTITIES: Final = {"seconds": "CPU seconds", "memory_mb": "MB of memory", "disk_mb": "MB on disk"}


def scenario_of(axis: str, value: int, place: Path) -> dict[str, Any]:
    """The setting of one point, with its images written below ``place``."""
    is_search = axis in ("batch", "side", "restarts")
    raw = json.loads(json.dumps(SEARCH if is_search else FEDERATION))
    restarts = value if axis == "restarts" else 1
    if axis == "batch":
        raw["federation"]["batch_size"] = raw["data"]["examples"] = value
    if axis == "clients":
        raw["federation"]["clients"] = value
    if axis in THOUSAND:
        raw["federation"]["clients"] = 1000
    if axis in ("rounds", *THOUSAND):  # PROLIN's setting: a fifth per round, only sums
        raw["federation"] |= {"rounds": value, "cohort": 0.2, "secure_sum": True, "keep": {"rounds": "all"}}
        raw["audit"]["rounds"] = [-1]
    raw["attacks"] = [{"name": "linear_input"}]
    if is_search:
        search = {"iterations": ITERATIONS, "restarts": restarts}
        raw["attacks"] = [{"name": "inverting_gradients", "search": search}]
    if axis == "prolin":
        raw["data"] |= {"members": 5, "auxiliary": 200}
        raw["grants"], raw["attacks"] = {"challenge": True}, [PROLIN]
    clients, examples = raw["federation"]["clients"], raw["data"]["examples"]
    raw["data"]["source"] = write_noise(place, clients * examples + 300, value if axis == "side" else 32)
    return dict(raw)


def write_noise(place: Path, count: int, side: int) -> str:
    """Images of noise as a data source."""
    rng = np.random.default_rng(0)
    arrays: dict[str, Any] = {}
    for split in ("train", "test"):
        arrays[f"{split}_images"] = rng.integers(0, 256, (count, side, side, 3), dtype=np.uint8)
        arrays[f"{split}_labels"] = np.arange(count) % 10
    np.savez(place / "noise.npz", **arrays)
    return f"npz:{place / 'noise.npz'}"


def measure(axis: str, value: int) -> dict[str, float]:
    """Seconds, memory above that of the smallest point, and disk use of one point, in this process."""
    prepare_process()
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        os.environ["GLASSHOUSE_CACHE"] = str(place / "cache")  # nothing is taken from an earlier point
        smallest = scenario_of(axis, AXES[axis][0], place)
        play(smallest, axis, place / "warm")  # warm-up: one-time costs of a process are not counted
        idle = peak_memory()
        spent = play(scenario_of(axis, value, place), axis, place / "group")
        disk = sum(p.stat().st_size for p in (place / "group").rglob("*") if p.is_file())
    return {"value": value, "seconds": spent, "memory_mb": peak_memory() - idle, "disk_mb": disk / 1e6}


def play(raw: dict[str, Any], axis: str, folder: Path) -> float:
    """CPU seconds of the federation, or of one iteration of the attack on it."""
    scenario = from_dict(raw)
    write_resolved(scenario, folder / "scenario.toml")
    started = time.process_time()
    group = Group(folder=str(folder), seed=scenario.seed)
    simulate(group)
    if axis in ("clients", "rounds", "rounds_of_1000"):
        return time.process_time() - started
    started = time.process_time()
    for piece in pieces(group_tasks(scenario, group, "cpu")):
        run_piece(piece)
    spent = time.process_time() - started
    return spent if axis == "prolin" else spent / ITERATIONS


def beside(processes: Sequence[int], *, rounds: int = 100, times: int = 2) -> None:
    """Median wall-clock seconds of one federation, alternating over numbers of client processes."""
    prepare_process()
    taken: dict[int, list[float]] = {count: [] for count in processes}
    with tempfile.TemporaryDirectory() as name:
        scenario = from_dict(scenario_of("rounds_of_1000", rounds, Path(name)))
        for turn in range(times):
            for count in processes:
                folder = Path(name) / f"{turn}-{count}"
                write_resolved(scenario, folder / "scenario.toml")
                started = time.perf_counter()
                simulate(Group(folder=str(folder), seed=scenario.seed, processes=count))
                taken[count].append(time.perf_counter() - started)
    first = statistics.median(taken[processes[0]])
    for count, seconds in taken.items():
        middle = statistics.median(seconds)
        print(f"{count} processes: {middle:.1f} s, {first / middle:.2f} times as fast", flush=True)


def exponent(points: Sequence[dict[str, float]], quantity: str) -> float:
    """The slope of the last three points on logarithmic axes."""
    last = [p for p in points[-3:] if p[quantity] > 0]
    if len(last) < 2:
        return math.nan
    x, y = ([math.log(p[name]) for p in last] for name in ("value", quantity))
    return float(np.polyfit(x, y, 1)[0])


def chart(rows: dict[str, list[dict[str, float]]]) -> str:
    """One logarithmic panel per axis and quantity, with the exponent, as SVG."""
    wide, high, edge = 190, 130, 34
    parts = []
    for column, (axis, points) in enumerate(rows.items()):
        for line, (quantity, words) in enumerate(QUANTITIES.items()):
            left, top = column * wide + edge, line * high + 26
            kept = [p for p in points if p[quantity] > 0]
            if not kept:
                continue
            x, y = [math.log10(p["value"]) for p in kept], [math.log10(p[quantity]) for p in kept]
            low, tall = min(y), max(max(y) - min(y), 0.5)
            across = max(max(x) - min(x), 0.5)
            at = [
                (left + (a - min(x)) / across * (wide - 60), top + 70 - (b - low) / tall * 60)
                for a, b in zip(x, y, strict=True)
            ]
            path = " ".join(f"{a:.1f},{b:.1f}" for a, b in at)
            parts.append(f'<polyline points="{path}" fill="none" stroke="#1f5fa8" stroke-width="1.5"/>')
            parts += [f'<circle cx="{a:.1f}" cy="{b:.1f}" r="2.5" fill="#1f5fa8"/>' for a, b in at]
            title = f"{words} ∝ {axis}^{exponent(points, quantity):.2f}"
            parts.append(f'<text x="{left}" y="{top - 2}">{escape(title)}</text>')
            ends = f"{kept[0]['value']:.0f} to {kept[-1]['value']:.0f}: "
            ends += f"{kept[0][quantity]:.2g} to {kept[-1][quantity]:.2g}"
            parts.append(f'<text x="{left}" y="{top + 86}" fill="#555">{escape(ends)}</text>')
    size = f"{len(rows) * wide + 20} {len(QUANTITIES) * high + 10}"
    style = 'font-family="sans-serif" font-size="9.5"'
    return f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {size}" {style}>{"".join(parts)}</svg>\n'


def main() -> None:
    """Measure missing points, print the table, draw the chart."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("runs/scale"))
    parser.add_argument("--chart", type=Path, help="where the chart goes; default OUT/scale.svg")
    parser.add_argument("--axes", nargs="*", default=list(AXES), choices=list(AXES))
    parser.add_argument("--most", type=int, default=10**9, help="no point above it")
    parser.add_argument("--point", nargs=2, metavar=("AXIS", "VALUE"), help="measure one, print it as JSON")
    parser.add_argument("--processes", nargs="*", type=int, help="one federation in so many processes")
    arguments = parser.parse_args()
    if arguments.processes:
        beside(arguments.processes)
        return
    if arguments.point:
        print(json.dumps(measure(arguments.point[0], int(arguments.point[1]))))
        return
    arguments.out.mkdir(parents=True, exist_ok=True)
    rows: dict[str, list[dict[str, float]]] = {}
    for axis in arguments.axes:
        rows[axis] = []
        for value in (v for v in AXES[axis] if v <= arguments.most):
            kept = arguments.out / f"{axis}-{value}.json"
            if not kept.exists():
                command = [sys.executable, "-m", "benchmarks.scale", "--point", axis, str(value)]
                said = subprocess.run(command, check=True, capture_output=True, text=True).stdout
                kept.write_text(said.splitlines()[-1] + "\n", encoding="utf-8")
            rows[axis].append(json.loads(kept.read_text(encoding="utf-8")))
    print("| grows | from, to | " + " | ".join(QUANTITIES.values()) + " | exponents |")
    print("|---|---|" + "---|" * (len(QUANTITIES) + 1))
    for axis, points in rows.items():
        ends = [f"{points[0][q]:.3g}, {points[-1][q]:.3g}" for q in QUANTITIES]
        slopes = ", ".join(f"{exponent(points, q):.2f}" for q in QUANTITIES)
        span = f"{points[0]['value']:.0f}, {points[-1]['value']:.0f}"
        print(f"| {axis} | {span} | " + " | ".join(ends) + f" | {slopes} |")
    (arguments.chart or arguments.out / "scale.svg").write_text(chart(rows), encoding="utf-8")


if __name__ == "__main__":
    main()
