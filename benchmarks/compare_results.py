"""Compare two runs of one scenario for equality: ``python -m benchmarks.compare_results BEFORE AFTER``.

Compares transcripts and claims on disk (bit by bit), and the contents of ``result.json``: findings, refusals,
utility, contrasts, exhibits. Intended differences are declared below and counted; any other one is printed
and gives exit code 1.
"""

import json
import re
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file

CLOSE = 1e-6
"""Relative tolerance; SSIM is now computed by our own code, with another order of summation."""
KINDS = {
    "ClientScores": "clients",
    "ClassRepresentatives": "class_representatives",
    "DefenseGuess": "defense",
    "Draws": "prior_samples",
    "DetectorReport": "appendix",
    "HeadReport": "appendix",
}
"""Claim kinds whose names differ from the class name in lower case."""
INTERVALS = frozenset({"low", "high", "gain_low", "gain_high"})
WORDS = frozenset({"chosen", "caption", "file", "title", "setting", "join"})
TITLES = {"both ends of its scale": "lower and upper bounds for its generator"}
CHANCE = "chance"
CELLS = "cells are named by a hash of their settings, of which some have new names (decision 0104)"
NULLS = "the quoted null is the known chance unless a null is shown to be above it (decision 0083)"

Json = Any
Difference = tuple[str, str]  # (why it is allowed, or "" if it is not; description)


def same(left: Json, right: Json) -> bool:
    """Equal, numbers within ``CLOSE``."""
    if isinstance(left, bool) or isinstance(right, bool) or left is None or right is None:
        return left is right
    if isinstance(left, int | float) and isinstance(right, int | float):
        return abs(left - right) <= CLOSE * max(abs(left), abs(right), 1e-6)
    if isinstance(left, Mapping) and isinstance(right, Mapping):
        return left.keys() == right.keys() and all(same(left[key], right[key]) for key in left)
    if isinstance(left, list) and isinstance(right, list):
        return len(left) == len(right) and all(map(same, left, right))
    return bool(left == right)


def compare_findings(before: Mapping[str, Json], after: Mapping[str, Json]) -> Iterator[Difference]:
    """Compare findings, matched by scenario, axes, attack and metric."""
    name = " / ".join(before[key] for key in ("scenario", "attack", "metric")) + f" {before['axes']}"
    raised = after["baseline"] == CHANCE != before["baseline"]
    for key in sorted(before.keys() - {"seconds"}):
        old, new = before[key], after.get(key)
        if same(old, new):
            if old != new:
                yield "numbers equal within 1e-6", f"{name}: {key}"
            continue
        yield _why(key, raised=raised), f"{name}: {key} {_short(old)} -> {_short(new)}"


def _why(key: str, *, raised: bool) -> str:
    if key in INTERVALS:
        return "intervals (decision 0080)"
    if key == "verdict":
        return "verdicts (decisions 0080, 0083, 0086)"
    if key == "cell":
        return CELLS
    if key == "control":
        return "controls run with the audited settings (decision 0086)"
    if raised and key in ("baseline", "baseline_value", "gain"):
        return NULLS
    return "words" if key in WORDS else ""


def rename_cells(findings: list[tuple[Json, Json]]) -> dict[str, str]:
    """Cell hash before → after, from matched findings."""
    return {old["cell"]: new["cell"] for old, new in findings}


def compare_claims(before: Path, after: Path, cells: Mapping[str, str]) -> Iterator[Difference]:
    """Compare every claim and message on disk: tensors bit by bit, the rest after renaming kinds.

    Args:
        before: run directory.
        after: another run directory.
        cells: hash of each cell, before → after.
    """
    for path in sorted((before / "cells").rglob("*")):
        relative = path.relative_to(before)
        folder, _, repeat = relative.parts[1].partition("-")
        place = "-".join([cells.get(folder, folder), *([repeat] if repeat else [])])
        other = after.joinpath(relative.parts[0], place, *relative.parts[2:])
        if not {"claims", "transcript"} & set(relative.parts) or not path.is_file():
            continue
        if not other.is_file():
            yield "", f"{relative} is missing"
        elif path.suffix == ".safetensors":
            yield from _compare_tensors(path, other, str(relative))
        elif path.name == "claims.json":
            yield from _compare_claim_files(path, other, str(relative))
        elif path.read_bytes() != other.read_bytes():
            yield "", f"{relative} differs"
        else:
            yield "identical files", str(relative)


def _compare_tensors(path: Path, other: Path, name: str) -> Iterator[Difference]:
    left, right = (
        {key.removeprefix("tensors."): tensor for key, tensor in load_file(file).items()}
        for file in (path, other)
    )
    if left.keys() != right.keys():
        yield "", f"{name}: tensors {sorted(left)} -> {sorted(right)}"
    elif unequal := [key for key in left if not torch.equal(left[key], right[key])]:
        yield "", f"{name}: {', '.join(unequal)} differ"
    else:
        yield "identical tensors", name


def _compare_claim_files(path: Path, other: Path, name: str) -> Iterator[Difference]:
    left, right = json.loads(path.read_text()), json.loads(other.read_text())
    old = [_normalised(line) for line in left["claims"]]
    new = [_normalised(line) for line in right["claims"]]
    rest = ("refusal", "notes")
    if old != new or [left.get(key) for key in rest] != [right.get(key) for key in rest]:
        yield "", f"{name}: {_short(old)} -> {_short(new)}"
    else:
        yield "identical claims but for renamed kinds", name


def _normalised(line: Mapping[str, Json]) -> Json:
    """A claim's line without its tensors: kind, about, and all plain values."""
    fields = {key: value for key, value in line.items() if key not in ("kind", "about", "tensors", "plain")}
    fields |= line.get("plain", {})
    if "numbers" in fields:  # an appendix: its name and tensors are stored elsewhere
        fields = dict(fields["numbers"])
    kind = KINDS.get(line["kind"], line["kind"].lower())
    return [kind, line["about"], sorted(t.removeprefix("tensors.") for t in line["tensors"]), fields]


def compare_exhibits(
    before: Mapping[str, Json], after: Mapping[str, Json], runs: tuple[Path, Path]
) -> Iterator[Difference]:
    """Compare exhibits, matched by scenario, kind and title; images pixel by pixel."""
    name = f"{before['scenario']}: {before['title']}"
    for key in before:
        if not same(before[key], after[key]):
            reason = "words" if key in WORDS else ""
            if same(_without_intervals(before[key]), _without_intervals(after[key])):
                reason = "intervals (decision 0080)"
            elif key == "data" and same(_without_nulls(before[key]), _without_nulls(after[key])):
                reason = NULLS
            yield reason, f"{name}: {key} {_short(before[key])} -> {_short(after[key])}"
    if before["file"].endswith(".json"):
        left, right = (
            json.loads((run / e["file"]).read_text()) for run, e in zip(runs, (before, after), strict=True)
        )
        yield ("identical sentences" if left == right else ""), f"{name}: sentences"
    elif before["file"]:
        left, right = (_pictures(run / e["file"]) for run, e in zip(runs, (before, after), strict=True))
        yield ("identical pictures" if np.array_equal(left, right) else ""), f"{name}: pictures"


def _without_intervals(value: Json) -> Json:
    """The data of an exhibit, without interval bounds in table cells."""
    return json.loads(re.sub(r"\[-?[0-9.e+-]+, -?[0-9.e+-]+\]", "[]", json.dumps(value)))


def _without_nulls(data: Mapping[str, Json]) -> Json:
    """The data of an exhibit, without the table column that repeats the quoted null."""
    columns = data.get("columns", [])
    if "quoted null" not in columns:
        return _without_intervals(data)
    kept = [i for i, column in enumerate(columns) if column != "quoted null"]
    rows = [[row[i] for i in kept] for row in data.get("rows", [])]
    return _without_intervals({**data, "columns": [columns[i] for i in kept], "rows": rows})


def _pictures(path: Path) -> Any:
    with np.load(path) as archive:
        return archive["images"]


def compare_lists(
    before: Mapping[str, Json], after: Mapping[str, Json], cells: Mapping[str, str]
) -> Iterator[Difference]:
    """Compare refusals, utility and contrasts, in order."""
    for part in ("refusals", "utility", "contrasts"):
        moved = [{**row, "cell": cells.get(row["cell"], row["cell"])} for row in before[part]]
        equal = same(moved, after[part])
        yield ("lists equal" if equal else ""), f"{part}: {len(before[part])} and {len(after[part])} entries"


def pair(
    before: list[Json], after: list[Json], keys: tuple[str, ...]
) -> tuple[list[tuple[Json, Json]], list[Difference]]:
    """Pairs of entries with the same key, and the entries that are in only one list."""
    left, right = ({_key(entry, keys): entry for entry in entries} for entries in (before, after))
    pairs = [(left[key], right[key]) for key in left if key in right]
    gone = [("", f"gone: {key}") for key in left if key not in right]
    return pairs, [*gone, *(("", f"new: {key}") for key in right if key not in left)]


def _key(entry: Mapping[str, Json], keys: tuple[str, ...]) -> str:
    text = json.dumps([entry[key] for key in keys], ensure_ascii=False, sort_keys=True)
    for old, new in TITLES.items():
        text = text.replace(old, new)
    return text


def _short(value: Json) -> str:
    text = f"{value:.6g}" if isinstance(value, float) else str(value)
    return text if len(text) <= 90 else text[:87] + "..."


def compare(before: Path, after: Path) -> list[Difference]:
    """All differences between two run directories, and the equalities to count."""
    left, right = (json.loads((run / "result.json").read_text()) for run in (before, after))
    findings, others = pair(left["findings"], right["findings"], ("scenario", "axes", "attack", "metric"))
    cells = rename_cells(findings)
    differences: list[Difference] = [
        *compare_claims(before, after, cells),
        *compare_lists(left, right, cells),
        *others,
    ]
    for old, new in findings:
        differences += compare_findings(old, new)
        equal = all(same(old[key], new[key]) for key in ("value", "n", "unit", "median", "chance"))
        differences.append(("findings with the same value and n" if equal else "", _key(old, ("metric",))))
    exhibits, others = pair(left["exhibits"], right["exhibits"], ("scenario", "kind", "title"))
    differences += others
    for old, new in exhibits:
        differences += compare_exhibits(old, new, (before, after))
    return differences


def main(arguments: list[str]) -> int:
    """Print counts of equal and declared differences, changed verdicts, and undeclared differences."""
    differences = compare(*map(Path, arguments))
    for reason, count in sorted(Counter(reason for reason, _ in differences if reason).items()):
        print(f"{count:5}  {reason}")
    for reason, what in differences:
        if reason.startswith(("verdicts", "the quoted null")):
            print(f"       {what}")
    undeclared = [what for reason, what in differences if not reason]
    print(f"{len(undeclared):5}  not declared")
    for what in undeclared:
        print(f"       {what}")
    return 1 if undeclared else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
