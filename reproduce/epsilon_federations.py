"""Canaries in federations on CIFAR-10: ``python -m reproduce.epsilon_federations [--federations 20]``.

The last table of docs/results/dp.md. LeNet, two clients, with noise for a proved ε and without noise, for
DP-SGD (canary examples) and for the Gaussian mechanism on updates (canary clients). Each federation is a line
of ``--out``; existing ones are not run again.
"""

import argparse
import json
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from glasshouse.audit.simulation.epsilon import measure_epsilon
from glasshouse.results.strength import EmpiricalEpsilon
from glasshouse.scenario.axes import cells
from glasshouse.scenario.load import from_dict

CLAIMED = 4.0
ON: dict[str, dict[str, Any]] = {
    "DP-SGD, full batches": {"name": "dp_sgd", "clip": 1.0, "epsilon": CLAIMED, "delta": 1e-5, "rounds": 3},
    "DP-SGD, a quarter per step": {
        "name": "dp_sgd", "clip": 1.0, "epsilon": CLAIMED, "delta": 1e-5, "rounds": 3,
    },
    "updates": {"name": "gaussian_mechanism", "clip": 1.0, "epsilon": CLAIMED, "delta": 1e-5, "rounds": 3},
}  # fmt: skip


CANARIES = {"DP-SGD, full batches": 1000, "DP-SGD, a quarter per step": 3000, "updates": 1000}
"""Number of canaries; more with sampled steps, for which the Gaussian-DP bound does not hold."""


def scenario(kind: str, *, noise: bool, seed: int) -> Any:
    """One federation; without noise, the defence runs with noise of at most 1e-3 of the sensitivity."""
    defense = dict(ON[kind])
    if not noise and defense["name"] == "dp_sgd":
        del defense["epsilon"]
        defense["noise_multiplier"] = 1e-3
    elif not noise:
        defense["epsilon"] = 1e6
    return from_dict(
        {
            "name": "epsilon",
            "seed": seed,
            "data": {"source": "cifar10", "examples": 32, "auxiliary": 20, "heldout": 20},
            "model": {"name": "lenet5"},
            "federation": {
                "protocol": "fedavg",
                "clients": 2,
                "rounds": 3,
                "batch_size": 8 if "quarter" in kind else 32,
            },
            "defenses": [defense],
            "attacks": [{"name": "label_inference"}],
            "audit": {"distractors": 9, "epsilon": {"claimed": CLAIMED, "canaries": CANARIES[kind]}},
        }
    )


def main() -> None:
    """Run missing federations, then print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--federations", type=int, default=20)
    parser.add_argument("--out", type=Path, default=Path("runs/epsilon_federations.jsonl"))
    parser.add_argument("--kinds", nargs="+", choices=sorted(ON), default=list(ON))
    arguments = parser.parse_args()
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    known = {}
    if arguments.out.is_file():
        lines = [json.loads(line) for line in arguments.out.read_text().splitlines()]
        known = {(one["kind"], one["noise"], one["seed"]): one for one in lines}
    for noise in (False, True):
        for seed in range(arguments.federations):
            for kind in arguments.kinds:
                if (kind, noise, seed) in known:
                    continue
                started = time.process_time()
                shown = measure_epsilon(cells(scenario(kind, noise=noise, seed=seed))[0])
                assert isinstance(shown, EmpiricalEpsilon), shown
                one = {"kind": kind, "noise": noise, "seed": seed, **asdict(shown), "shown": shown.shown}
                one["contradicted"] = shown.shown > CLAIMED
                one["seconds"] = time.process_time() - started
                known[kind, noise, seed] = one
                with arguments.out.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(one) + "\n")
    print("| defence | noise | federations | shown, median (5 % to 95 %) | claimed ε = 4 contradicted |")
    print("|---|---|---|---|---|")
    for kind in arguments.kinds:
        for noise in (True, False):
            rows = [one for one in known.values() if (one["kind"], one["noise"]) == (kind, noise)]
            low, middle, high = np.quantile([one["shown"] for one in rows], [0.05, 0.5, 0.95])
            accused = sum(one["contradicted"] for one in rows)
            print(
                f"| {kind} | {'on' if noise else 'off'} | {len(rows)} | "
                f"{middle:.2f} ({low:.2f} – {high:.2f}) | {accused} of {len(rows)} |"
            )
    print(f"\n{sum(one['seconds'] for one in known.values()):.0f} CPU seconds")


if __name__ == "__main__":
    main()
