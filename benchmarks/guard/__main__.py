"""docs/results/guard.md, piece by piece.

python -m benchmarks.guard crafted --data cifar10:/data/cifar-10-batches-py --models mlp --seeds 2
python -m benchmarks.guard organic --data npz:cifar10.npz idx:mnist --out runs/organic --workers 16
python -m benchmarks.guard organic --table --out runs/organic
python -m benchmarks.guard evasions --data cifar10 --out runs/evasions
"""

import argparse
import sys

from benchmarks.guard import cost, crafted, evasions, forecast, mitigation, organic, pursuit, sums, truth

PARTS = {
    "cost": cost.main,
    "crafted": crafted.main,
    "evasions": evasions.main,
    "forecast": forecast.main,
    "organic": organic.main,
    "mitigation": mitigation.main,
    "preflight": truth.main,
    "pursuit": pursuit.main,
    "sums": sums.main,
}

if __name__ == "__main__":
    if len(sys.argv) < 2 or sys.argv[1] not in PARTS:
        argparse.ArgumentParser(description=__doc__).exit(2, f"one of {', '.join(PARTS)}\n")
    PARTS[sys.argv.pop(1)]()
