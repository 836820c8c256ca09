"""The tables of docs/results/text.md from the pieces that ``benchmarks.text`` left.

python -m benchmarks.text_tables FOLDER
"""

import argparse
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rouge_score import rouge_scorer

from benchmarks.text import exact, settings
from glasshouse.metrics.statistics.shares import proportion_interval


def show(folder: Path) -> None:
    """One line per setting from all pieces."""
    rows: dict[str, list[dict[str, Any]]] = {}
    for path in sorted(folder.glob("*.json")):
        rows.setdefault(path.stem.rpartition("-")[0], []).append(json.loads(path.read_text()))
    order = {name: i for i, name in enumerate(dict.fromkeys(s.table for s in settings(2)))}
    for name, records in sorted(rows.items(), key=lambda row: (order[row[1][0]["setting"]["table"]], row[0])):
        seconds = sum(r["seconds"]["attack"] for r in records) / len(records)
        print(f"{name:52s} {len(records):3d} batches  {_numbers(records)}  {seconds:6.2f} s", flush=True)


def _numbers(records: list[dict[str, Any]]) -> str:
    hits, total = (sum(part) for part in zip(*map(exact, records), strict=True))
    claims = sum(len(r["found"]) for r in records)
    right = sum(tuple(one) in set(map(tuple, r["truth"])) for r in records for one in r["found"])
    interval = proportion_interval(hits, total)
    tokens = sum(r["tokens"] for r in records) / len(records)
    named = [len(set(r["rows"]) & _words(r)) / len(_words(r)) for r in records if r.get("rows") is not None]
    rouge = [_rouge(true, r["found"]) for r in records for true in r["truth"]]
    parts = [
        f"exact {hits}/{total} = {hits / total:.3f} [{interval.low:.3f}, {interval.high:.3f}]",
        f"of {claims} claims right {right}",
        *(f"rouge-{k} {sum(one[i] for one in rouge) / len(rouge):.3f}" for i, k in enumerate((1, 2))),
        f"tokens {tokens:.0f}",
        f"rows name {sum(named) / len(named):.3f}" if named else "",
        f"loss {sum(r['loss'] for r in records) / len(records):.2f}",
    ]
    return "  ".join(part for part in parts if part)


def _words(record: Mapping[str, Any]) -> set[int]:
    return {t for row in record["truth"] for t in row}


class Words:
    """Splits at spaces, for numbers of tokens."""

    def tokenize(self, text: str) -> list[str]:
        """Words."""
        return text.split()


def _rouge(true: list[int], found: list[list[int]]) -> tuple[float, float]:
    """ROUGE-1 and ROUGE-2 of the best claim, over tokens."""
    scorer = rouge_scorer.RougeScorer(["rouge1", "rouge2"], tokenizer=Words())
    target = " ".join(map(str, true))
    every = [scorer.score(target, " ".join(map(str, one))) for one in found]
    one, two = (max((s[k].fmeasure for s in every), default=0.0) for k in ("rouge1", "rouge2"))
    return one, two


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    show(parser.parse_args().folder)
