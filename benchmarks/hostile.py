"""Hostile apps and jobs against a site's gate, in both frameworks, as one table.

``python -m benchmarks.hostile [--framework flower] [--out runs/hostile]`` starts real deployments over the
loopback (a quarter of an hour each), and prints for each of the twenty deeds what became of it: refused, sent
without what it carried, not started, or out of reach, with the bytes handed in and the bytes that left.
"""

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

DEEDS = (
    ("1", "update of huge norm", ("norm",)),
    ("2", "its loss as a metric", ("loss",)),
    ("3", "a row of data as a list of metrics", ("metric_list",)),
    ("4, 5", "a row as an exception's text", ("exception",)),
    ("6", "data in an integer buffer", ("buffer",)),
    ("7", "an extra tensor", ("extra_tensor",)),
    ("7", "a tensor of another shape", ("shape",)),
    ("8", "a row as a record's name", ("record_name",)),
    ("8", "a row as a tensor's name", ("tensor_name",)),
    ("8", "a row as a tensor's stype", ("stype",)),
    ("8", "data in the order of tensors", ("order",)),
    ("9", "bytes beside the tensors", ("config_bytes",)),
    ("10", "n = 1", ("one_example",)),
    ("10", "n that carries a byte", ("count",)),
    ("10", "n that carries a row in its digits", ("count_digits",)),
    ("", "40,000 faults in one message", ("many_faults",)),
    ("11", "raw update, its noise removed", ("no_noise",)),
    ("12", "the same tensors again", ("same_again",)),
    ("12", "a second answer to one question", ("twice",)),
    ("13", "64-bit numbers", ("float64",)),
    ("14", "payloads in NaN", ("nan",)),
    ("14", "data in denormals", ("denormal",)),
    ("14", "data in signs of zero", ("minus_zero",)),
    ("15", "data in the low bits", ("low_bits",)),
    ("16", "a byte a round in a listed metric", ("pieces",)),
    ("17", "a filter of the job's own", ("a filter of the job's own",)),
    ("18", "an event handler after the filters", ("an event handler",)),
    ("19", "a script in the filters' process", ("a script in the filters' process",)),
    ("19", "the same where the site allows it (grade C)", ("inside",)),
    ("20", "another app than approved", ("other_app",)),
    ("20", "metrics as events for the federation", ("metrics as fed events",)),
    ("20", "a row through FLARE's log of metrics", ("event",)),
    ("20", "a message over FLARE's own network", ("cell",)),
    ("", "a connection of its own (grade B)", ("socket",)),
    ("", "honest", ("honest",)),
)
"""The list's number, words, and the names that the tests give it."""
FILES = {
    "flower": (
        "tests/integrations/test_flower_gate_deployed.py",
        "hostile or raw_update or second_answer or another_app",
    ),
    "nvflare": (
        "tests/integrations/test_nvflare_deployed.py",
        "hostile or job_that_could or exceptions_text or another_app or raw_update or reach or replaces",
    ),
}


def run(framework: str, table: Path) -> int:
    """Run the deployments of one framework; their tests write a line for each deed to ``table``."""
    file, chosen = FILES[framework]
    command = [sys.executable, "-m", "pytest", "-q", "-m", "slow", file, "-k", chosen]
    table.parent.mkdir(parents=True, exist_ok=True)
    table.unlink(missing_ok=True)
    environment = {**os.environ, "GLASSHOUSE_HOSTILE_TABLE": str(table.resolve())}
    return subprocess.run(command, env=environment, check=False).returncode


def read(table: Path) -> dict[str, list[dict[str, Any]]]:
    """What became of each deed; a deed that was done several times has several lines."""
    rows: dict[str, list[dict[str, Any]]] = {}
    for line in table.read_text().splitlines() if table.exists() else ():
        row = json.loads(line)
        rows.setdefault(row["deed"], []).append(row)
    return rows


def cell(rows: dict[str, list[dict[str, Any]]], names: tuple[str, ...]) -> str:
    """One cell: outcome, rules, bytes handed in and bytes that left; a dash if there is nothing to do."""
    found = [row for name in names for row in rows.get(name, ())]
    if not found:
        return "-"
    worst = max(found, key=lambda row: (row["outcome"] != "refused", row["left"]))
    rules = f" ({', '.join(sorted(set(worst['rules'])))})" if worst["rules"] else ""
    without = " without it" if worst["outcome"] == "sent" and names != ("honest",) else ""
    return f"{worst['outcome']}{without}{rules}: {worst['handed_in']:,} in, {worst['left']:,} left"


def print_table(out: Path) -> None:
    """Print the table of what was run so far."""
    flower, nvflare = (read(out / f"{framework}.jsonl") for framework in FILES)
    print("| # | what it does | Flower | FLARE |\n|---|---|---|---|")
    for number, words, names in DEEDS:
        print(f"| {number} | {words} | {cell(flower, names)} | {cell(nvflare, names)} |")


def main(frameworks: list[str], out: Path) -> int:
    """Run the deployments and print the table; returns the number of frameworks whose tests failed."""
    failed = sum(run(framework, out / f"{framework}.jsonl") != 0 for framework in frameworks)
    print_table(out)
    return failed


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--framework", action="append", choices=[*FILES], help="default: both")
    parser.add_argument("--out", type=Path, default=Path("runs/hostile"))
    options = parser.parse_args()
    sys.exit(main(options.framework or [*FILES], options.out))
