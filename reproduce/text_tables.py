"""The tables of docs/results/text.md, from the pieces of ``reproduce.text``.

    python -m reproduce.text_tables FOLDER [--chart FILE]

``--chart``: the share of sentences read against the tokens of a batch, GPT-2 on Rotten Tomatoes, as SVG.
"""

import argparse
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rouge_score import rouge_scorer

from glasshouse.metrics.statistics.shares import proportion_interval
from reproduce.text import exact, settings


def show(folder: Path) -> None:
    """Print one line per setting, from all pieces."""
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
    """A tokenizer that splits at spaces, for token ids written as text."""

    def tokenize(self, text: str) -> list[str]:
        """Split at spaces."""
        return text.split()


def _rouge(true: list[int], found: list[list[int]]) -> tuple[float, float]:
    """ROUGE-1 and ROUGE-2 of the best claim, over tokens."""
    scorer = rouge_scorer.RougeScorer(["rouge1", "rouge2"], tokenizer=Words())
    target = " ".join(map(str, true))
    every = [scorer.score(target, " ".join(map(str, one))) for one in found]
    one, two = (max((s[k].fmeasure for s in every), default=0.0) for k in ("rouge1", "rouge2"))
    return one, two


WIDTH, HEIGHT, LEFT, BOTTOM = 620, 250, 46, 206
FULL = 768
"""Width of GPT-2's layers: with this many tokens, their gradient reveals no single token."""


def chart(folder: Path) -> str:
    """Share of sentences read exactly, with 95 % intervals, against the mean number of tokens per batch."""
    rows: dict[int, list[dict[str, Any]]] = {}
    for path in (*folder.glob("decoder-gpt2-rotten*.json"), *folder.glob("beyond-gpt2-rotten*.json")):
        record = json.loads(path.read_text())
        rows.setdefault(record["setting"]["batch"], []).append(record)
    points = []
    for records in rows.values():
        hits, total = (sum(part) for part in zip(*map(exact, records), strict=True))
        points.append((sum(r["tokens"] for r in records) / len(records), proportion_interval(hits, total)))
    points.sort(key=lambda point: point[0])
    most = max(tokens for tokens, _ in points) * 1.04

    def x(tokens: float) -> float:
        return LEFT + tokens / most * (WIDTH - LEFT - 10)

    def y(share: float) -> float:
        return BOTTOM - share * (BOTTOM - 16)

    def text(at: float, up: float, words: str, anchor: str = "middle") -> str:
        return f'<text x="{at:.1f}" y="{up:.1f}" text-anchor="{anchor}">{words}</text>'

    def line(x1: float, y1: float, x2: float, y2: float, look: str) -> str:
        return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" {look}/>'

    blue, grey = 'stroke="#1f5fa8" stroke-width="1.5"', 'stroke="#999"'
    parts = [line(LEFT, y(v), WIDTH - 10, y(v), 'stroke="#ddd"') for v in (0, 0.25, 0.5, 0.75, 1)]
    parts += [text(LEFT - 6, y(v) + 4, f"{v:g}", "end") for v in (0, 0.25, 0.5, 0.75, 1)]
    parts += [line(x(FULL), y(0), x(FULL), y(1), f'{grey} stroke-dasharray="4 3"')]
    parts += [text(x(FULL) + 5, y(0.9), f"width of a layer, {FULL}", "start")]
    path = " ".join(f"{x(tokens):.1f},{y(share.value):.1f}" for tokens, share in points)
    parts += [f'<polyline points="{path}" fill="none" {blue}/>']
    for tokens, share in points:
        parts += [line(x(tokens), y(share.low), x(tokens), y(share.high), blue)]
        parts += [f'<circle cx="{x(tokens):.1f}" cy="{y(share.value):.1f}" r="3" fill="#1f5fa8"/>']
    parts += [text(x(t), BOTTOM + 16, f"{t:,}") for t in range(0, int(most), 250)]
    parts += [text((LEFT + WIDTH) / 2, BOTTOM + 34, "tokens of a batch, mean")]
    parts += [text(LEFT, 10, "share of sentences read word for word", "start")]
    head = f'viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" font-size="11"'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {head}>{"".join(parts)}</svg>\n'


def main() -> None:
    """Print the tables, and draw the chart."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--chart", type=Path)
    arguments = parser.parse_args()
    show(arguments.folder)
    if arguments.chart:
        arguments.chart.write_text(chart(arguments.folder), encoding="utf-8")


if __name__ == "__main__":
    main()
