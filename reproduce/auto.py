"""``attacks = "auto"`` beside the attacks that people chose: every cell of some scenarios, by every metric.

``python -m reproduce.auto compare OUT NAME ... [--budget "2 min"] [--set path=value]``: each scenario (a
preset or a ``.toml`` file) is audited with its own attacks and with those of ``auto``, in ``OUT/NAME/hand``
and ``OUT/NAME/auto``; what is there is not run again. ``table OUT`` prints a row per cell and metric, and how
many cells ``auto`` is at least as strong in. ``strength OUT`` prints what share of what guessing leaves every
attack got, over cells without a defence: the numbers that attacks declare in their cards.
"""

import argparse
import csv
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import mean

import glasshouse as gh
from glasshouse.results.records import Finding, Result

SIDES = ("hand", "auto")
QUIET = ("audit.controls=false", "audit.planted=0", "audit.utility=false")
"""What costs time and moves no number of an attack."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Run one of the commands."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("command", choices=("compare", "table", "strength"))
    parser.add_argument("out", type=Path)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--budget", default="10 min")
    parser.add_argument("--set", action="append", default=[], dest="sets")
    parser.add_argument("--captured", default=None)
    given = parser.parse_args(arguments)
    if given.command == "compare":
        for name in given.names:
            _compare(name, given.out, given.budget, given.sets, given.captured)
    elif given.command == "table":
        _table(given.out)
    else:
        _strength(given.out)


def _compare(name: str, out: Path, budget: str, sets: Sequence[str], captured: str | None) -> None:
    """Audit one scenario twice."""
    own = (f'audit.budget="{budget}"', "attacks=auto")
    place = out / (Path(captured).parent.name if captured else Path(name).stem)
    for side, changes in zip(SIDES, ((), own), strict=True):
        folder = place / side
        if (folder / "result.json").is_file():
            continue
        quiet = [one for one in QUIET if not (captured and "planted" in one)]
        run = gh.audit(
            name, sets=[*quiet, *sets, *changes], out=folder, jobs=1, register=False, captured=captured,
            resume=folder.is_dir(),
        )  # fmt: skip
        print(place.name, side, sum(run.result.manifest["cpu_seconds"].values()), flush=True)


def _results(out: Path) -> Iterator[tuple[str, dict[str, Result]]]:
    """Both results of every scenario that has them."""
    for place in sorted(out.iterdir()):
        if all((place / side / "result.json").is_file() for side in SIDES):
            yield place.name, {side: gh.load(place / side).result for side in SIDES}


def _table(out: Path) -> None:
    """One row per cell and metric; then the count."""
    rows = csv.writer(sys.stdout)
    rows.writerow(
        ("scenario", "cell", "metric", "n", "by hand", "value", "auto", "value", "at least as strong")
    )
    held, within, every = 0, 0, 0
    for name, sides in _results(out):
        for cell, metric in dict.fromkeys(_place(f) for f in sides["hand"].findings):
            best = {side: _best(sides[side], cell, metric) for side in SIDES}
            hand, auto = best["hand"], best["auto"]
            if hand is None:
                continue
            every += 1
            strong = auto is not None and _leak(auto) >= _leak(hand)
            held += strong
            within += strong or (auto is not None and auto.low <= hand.value <= auto.high)
            of_auto = ("none", "") if auto is None else (auto.attack, f"{auto.value:.4g}")
            rows.writerow((name, cell, metric, hand.n, hand.attack, f"{hand.value:.4g}", *of_auto, strong))
    print(
        f"auto is at least as strong in {held} of {every}; or the value by hand is in its interval: {within}"
    )
    for name, sides in _results(out):
        spent = {side: round(sum(one.manifest["cpu_seconds"].values())) for side, one in sides.items()}
        print(name, spent)


def _place(finding: Finding) -> tuple[str, str]:
    return str(dict(finding.axes)), finding.metric


def _best(result: Result, cell: str, metric: str) -> Finding | None:
    """The finding that leaks most of one cell by one metric."""
    found = [f for f in result.findings if _place(f) == (cell, metric)]
    return max(found, key=_leak, default=None)


def _leak(finding: Finding) -> float:
    return finding.value if finding.higher_leaks else -finding.value


def _strength(out: Path) -> None:
    """Each attack's mean share of what guessing leaves, over undefended cells and bounded metrics up to 1."""
    shares: dict[str, list[float]] = {}
    for _, sides in _results(out):
        for result in sides.values():
            bounded = {m.name for m in result.metrics if m.high == 1.0 and m.higher_leaks}
            for f in result.findings:
                if f.primary and f.metric in bounded and not f.defenses and f.baseline_value < 1:
                    share = (f.value - f.baseline_value) / (1 - f.baseline_value)
                    shares.setdefault(f.attack, []).append(max(0.0, share))
    for attack, values in sorted(shares.items(), key=lambda item: -mean(item[1])):
        print(f"{attack}: {mean(values):.2f} over {len(values)} cells")


if __name__ == "__main__":
    main()
