"""Trap weights, and honest models, judged by a client with 64 digits: ``python -m benchmarks.guard traps``.

One line of JSON per client: which models with trap weights are refused, by the factor of their positive half,
and which honest ones. The rule was chosen on digits 600 to 963; the last 768 and other weights judge it.
"""

import argparse
import json
from collections.abc import Iterator

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

from benchmarks.guard.pursuit import STATES, states_of
from glasshouse.attacks.linear.cah import trap_rows
from glasshouse.guard.pursuit.examples import Own
from glasshouse.guard.pursuit.fresh import initialise_again
from glasshouse.guard.pursuit.inspect import HonestRanges, inspect_in_modes
from glasshouse.rng import Rng

EXAMPLES, FIRST = 64, 1029
FACTORS = (0.5, 0.6, 0.7, 0.8, 0.9)
CLIENTS = 6


def network(rows: int) -> nn.Sequential:
    """Two linear layers."""
    return nn.Sequential(nn.Flatten(), nn.Linear(64, rows), nn.ReLU(), nn.Linear(rows, 10))


def with_traps(model: nn.Module, *, factor: float, rng: Rng) -> nn.Module:
    """Rows negative in one random half, positive by ``factor`` in the other (Boenisch et al. 2023)."""
    work, _ = initialise_again(model, seed=0)
    weight, bias = work.get_parameter("1.weight"), work.get_parameter("1.bias")
    with torch.no_grad():
        weight.copy_(trap_rows(*weight.shape, scale=factor, rng=rng))
        bias.zero_()
    return work


def clients() -> Iterator[tuple[int, Own, Own]]:
    """Number, examples of a client, and those of all others."""
    pixels, labels = load_digits(return_X_y=True)
    inputs, targets = torch.tensor(pixels / 16).float().reshape(-1, 1, 8, 8), torch.tensor(labels)
    elsewhere = Own(inputs=inputs[:600], targets=targets[:600])
    for number in range(CLIENTS):
        rows: Tensor = torch.arange(EXAMPLES) + FIRST + number * EXAMPLES
        yield number, Own(inputs=inputs[rows], targets=targets[rows]), elsewhere


def main() -> None:
    """Judge both kinds of models at every client."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, nargs="+", default=[128, 512])
    chosen = parser.parse_args()
    for rows in chosen.rows:
        for number, own, elsewhere in clients():
            model = network(rows)
            honest = HonestRanges.of(model, own)

            def verdict(one: nn.Module, own: Own = own, honest: HonestRanges = honest) -> str:
                return inspect_in_modes(one, own, honest=honest).verdict

            rng = Rng.root(number, salt="traps")
            made = {f: with_traps(model, factor=f, rng=rng.child(str(f))) for f in FACTORS}
            fresh, _ = initialise_again(model, seed=500 + number)
            states = dict(zip(STATES, states_of(fresh, elsewhere), strict=True))
            line = {
                "rows": rows,
                "client": number,
                "traps refused": {f: verdict(one) == "refused" for f, one in made.items()},
                "honest refused": [name for name, one in states.items() if verdict(one) == "refused"],
                "honest": len(states),
            }
            print(json.dumps(line), flush=True)
