"""Disguised attacks, and organic models of the same architectures, at the guard's shipped limits.

Crafted models are those of ``glasshouse guard --self-test``, on ``--data``. Organic ones are untrained and
trained, in all variants of ``organic``, tested on the same client's examples. The score for the AUC is the
largest excess over a behaviour limit, and infinite if a rule on weights or structure raises a finding.
Pieces (one attack, one seed) are files; existing ones are not run again.
"""

import argparse
import json
import math
from dataclasses import asdict
from pathlib import Path

import torch
from glasshouse.guard.behaviour.modes import HonestRanges, inspect_in_modes, learn_honest_ranges

from benchmarks.guard.disguised.cases import CASES, Case
from benchmarks.guard.disguised.play import HONEST, KNOWN, MISS, NEEDED, OWN, run_cases
from benchmarks.guard.organic import broadcasts
from glasshouse.api.guard import BATCH, named_source
from glasshouse.data.sources import load
from glasshouse.guard.inspect import inspect
from glasshouse.models.build import build
from glasshouse.rng import Rng
from glasshouse.wire import Architecture, Batch

COMPRESSED = ("pruned", "int8")
Organic = tuple[str, float]
"""Variant and score."""
MEASURES = ("isolated", "paired", "alike", "concentration")


def score(values: dict[str, float], *, rules: bool) -> float:
    """The excess over the closest limit; negative: the model passes."""
    if rules or "isolated" not in values:
        return math.inf
    return max(values[name] - values[f"{name}_limit"] for name in MEASURES)


def crafted(case: Case, data: Batch, classes: int, *, seed: int, folder: Path) -> list[dict[str, object]]:
    """The trials of one attack."""
    file = folder / _crafted_file(case, seed)
    if not file.exists():
        trials = run_cases(data, classes=classes, cases=(case,), seed=seed)
        file.write_text(json.dumps([{**asdict(one), "missed": one.missed} for one in trials]))
    rows: list[dict[str, object]] = json.loads(file.read_text())
    return rows


def organic(case: Case, data: Batch, classes: int, *, seed: int, folder: Path) -> list[Organic]:
    """Variants and scores of organic models of an attack's agreed architecture, for one seed's client."""
    file = folder / _organic_file(case, seed)
    if not file.exists():
        order = torch.randperm(len(data), generator=Rng.root(seed, salt="deal").torch())
        own, server = data.pick(order[:OWN]), data.pick(order[NEEDED - KNOWN :])
        shape = tuple(data.inputs.shape[1:])
        network = build(Architecture.of(case.model, shape, classes, case.arguments))
        ranges: HonestRanges = learn_honest_ranges(network, own.inputs, own.labels, batch=BATCH)
        first = own.inputs[:BATCH], own.labels[:BATCH]
        models = broadcasts(network, (server.inputs, server.labels), range(8000 + 2 * seed, 8002 + 2 * seed))
        rows = [
            (
                str(facts["variant"]),
                score(
                    dict(inspect_in_modes(model, *first, honest=ranges).values),
                    rules=bool(inspect(model.state_dict()).findings),
                ),
            )
            for facts, model in models
        ]
        file.write_text(json.dumps(rows))
    return [(variant, value) for variant, value in json.loads(file.read_text())]


def _crafted_file(case: Case, seed: int) -> str:
    return f"{case.title.replace(' ', '-')}.{seed}.json"


def _organic_file(case: Case, seed: int) -> str:
    return f"organic.{case.model}.{'-'.join(f'{k}{v}' for k, v in case.arguments.items())}.{seed}.json"


def table(rows: list[dict[str, object]], honest: dict[str, list[Organic]]) -> str:
    """A Markdown table: one row per attack, and the models that passed."""
    lines = [
        (
            "| attack | models | leak ≥ 5 % | of these caught | AUC | AUC, compressed organic models too | "
            "most read of one that passed (honest) |"
        ),
        "|---|---|---|---|---|---|---|",
    ]
    for title in dict.fromkeys(str(row["case"]) for row in rows):
        some = [row for row in rows if row["case"] == title and row["evasion"] != HONEST]
        leaking = [row for row in some if float(str(row["leak"])) >= MISS]
        caught = sum(bool(row["findings"]) for row in leaking)
        passed = [row for row in some if not row["findings"]]
        worst = max(passed, key=lambda row: float(str(row["leak"])), default=None)
        words = f"{worst['leak']:.2f} ({worst['usual']:.2f}), {worst['evasion']}" if worst else "none passed"
        known = honest.get(title, [])
        exact = [x for variant, x in known if variant not in COMPRESSED]
        leaks = [_score_of(row) for row in leaking]
        areas = f"{_auc(leaks, exact)} | {_auc(leaks, [x for _, x in known])}"
        lines.append(f"| {title} | {len(some)} | {len(leaking)} | {caught} | {areas} | {words} |")
    return "\n".join(lines)


def _score_of(row: dict[str, object]) -> float:
    findings, values = row["findings"], row["values"]
    assert isinstance(findings, list)
    assert isinstance(values, dict)
    behaviour = ("would give away", "would be as if", "answer to your examples alike")
    return score(values, rules=any(not any(word in f for word in behaviour) for f in findings))


def _auc(crafted_scores: list[float], honest: list[float]) -> str:
    if not crafted_scores or not honest:
        return "-"
    pairs = [(c > h) + 0.5 * (c == h) for c in crafted_scores for h in honest]
    return f"{sum(pairs) / len(pairs):.3f}"


def main() -> None:
    """Measure, store and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", default="cifar10")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path("runs/evasions"))
    parser.add_argument("--table", action="store_true", help="run nothing")
    chosen = parser.parse_args()
    chosen.out.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    source = load(named_source(chosen.data))
    part = source.splits["test" if "test" in source.splits else "train"]
    data = part.batch(torch.arange(min(len(part), 2 * NEEDED)))
    rows: list[dict[str, object]] = []
    honest: dict[str, list[Organic]] = {}
    for seed in range(1, 1 + chosen.seeds):
        for case in CASES:
            if not chosen.table or (chosen.out / _crafted_file(case, seed)).exists():
                rows += crafted(case, data, source.classes, seed=seed, folder=chosen.out)
            if not chosen.table or (chosen.out / _organic_file(case, seed)).exists():
                more = organic(case, data, source.classes, seed=seed, folder=chosen.out)
                honest.setdefault(case.title, []).extend(more)
    print(table(rows, honest))


if __name__ == "__main__":
    main()
