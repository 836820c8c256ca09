"""docs/results/guard.md, piece by piece.

python -m benchmarks.guard pursuit kinds --out runs/kinds.jsonl
python -m benchmarks.guard pursuit zoo --out runs/zoo.jsonl
python -m benchmarks.guard preflight --seeds 3 4 --out runs/preflight
"""

import argparse
import sys

from benchmarks.guard import cost, forecast, mitigation, pursuit, rounds, sums, traps, truth

PARTS = {
    "cost": cost.main,
    "forecast": forecast.main,
    "mitigation": mitigation.main,
    "preflight": truth.main,
    "pursuit": pursuit.main,
    "rounds": rounds.main,
    "sums": sums.main,
    "traps": traps.main,
}

if __name__ == "__main__":
    if len(sys.argv) < 2 or sys.argv[1] not in PARTS:
        argparse.ArgumentParser(description=__doc__).exit(2, f"one of {', '.join(PARTS)}\n")
    PARTS[sys.argv.pop(1)]()
