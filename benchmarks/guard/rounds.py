"""Two rounds on the same examples, honest and crafted: ``python -m benchmarks.guard rounds --seeds 20 25``.

One line of JSON per federation of three clients and five rounds of averaging on digits: which of its honest
messages are refused, and whether a model is whose lower thresholds came a round before its upper ones. Ranges
are the first client's, as in Flower. Lengths of steps and the share of chance were chosen on digits 600 to
963 and on other seeds; clients are judged on digits 0 to 599, and train on the last 768.
"""

import argparse
import copy
import itertools
import json
from collections.abc import Sequence

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F

from benchmarks.guard.traps import network
from glasshouse.guard.pursuit.examples import Own
from glasshouse.guard.pursuit.inspect import HonestRanges, inspect_in_modes

CLIENTS, ROUNDS = 3, 5
SETTINGS = ((16, 0.05, 8, 1), (64, 0.05, 8, 1), (64, 0.1, 64, 1), (64, 0.05, 8, 5))
"""Examples per client, learning rate, batch size, epochs."""


def averaged(
    first: nn.Module, shards: Sequence[Own], setting: tuple[int, float, int, int]
) -> list[nn.Module]:
    """The models that clients receive in an honest federation."""
    examples, rate, size, epochs = setting
    models = [first]
    for _ in range(ROUNDS - 1):
        trained = []
        for shard in shards:
            work = copy.deepcopy(models[-1])
            optimizer = torch.optim.SGD(work.parameters(), lr=rate)
            for start in list(range(0, examples, size)) * epochs:
                some = shard[start : min(start + size, examples)]
                optimizer.zero_grad()
                torch.autograd.backward(F.cross_entropy(work(some.inputs), some.targets))
                optimizer.step()
            trained.append(work.state_dict())
        following = copy.deepcopy(models[-1])
        following.load_state_dict({n: sum(t[n] for t in trained) / len(trained) for n in trained[0]})
        models.append(following)
    return models


def crafted(first: nn.Module, known: Own, generator: torch.Generator) -> list[nn.Module]:
    """Lower thresholds of narrow bins in one round, upper ones in the next; equal forces in both."""
    flat = known.inputs.flatten(1)
    rows = first.get_parameter("1.weight").shape[0]
    directions = torch.randn(rows, flat.shape[1], generator=generator) / flat.shape[1] ** 0.5
    ordered = (flat @ directions.T).sort(0).values
    low = ((0.2 + 0.6 * torch.rand(rows, generator=generator)) * len(flat)).long()
    both = []
    for place in (low, low + round(1.3 * len(flat) / 64)):
        work = copy.deepcopy(first)
        with torch.no_grad():
            work.get_parameter("1.weight").copy_(directions)
            work.get_parameter("1.bias").copy_(-ordered[place, torch.arange(rows)])
            work.get_parameter("3.weight").mul_(0.01)
        both.append(work)
    return both


def main() -> None:
    """Judge honest and crafted pairs of rounds."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, nargs="+", default=[512, 128])
    parser.add_argument("--seeds", type=int, nargs=2, default=[20, 25])
    parser.add_argument("--examples", type=int, nargs="+", default=[64, 192])
    chosen = parser.parse_args()
    pixels, labels = load_digits(return_X_y=True)
    inputs, targets = torch.tensor(pixels / 16).float().reshape(-1, 1, 8, 8), torch.tensor(labels)
    everybody = Own(inputs=inputs, targets=targets)
    for rows, examples, seed in itertools.product(chosen.rows, chosen.examples, range(*chosen.seeds)):
        torch.manual_seed(seed)
        generator = torch.Generator().manual_seed(seed)
        first = network(rows)
        setting = SETTINGS[seed % len(SETTINGS)]
        order = 1029 + torch.randperm(768, generator=generator)
        shards = [everybody[part] for part in order[: CLIENTS * setting[0]].split(setting[0])]
        models = averaged(first, shards, setting)
        pair = crafted(first, everybody[600:964], generator)
        owners = torch.randperm(600, generator=generator)[: CLIENTS * examples].split(examples)
        honest = HonestRanges.of(first, everybody[owners[0]])
        refused: list[str] = []
        for own in (everybody[owner] for owner in owners):
            earlier: tuple[nn.Module, ...] = ()
            for model in models:
                refused += inspect_in_modes(model, own, honest=honest, earlier=earlier).findings
                earlier = (model,)
        own = everybody[owners[1]]
        alone = [inspect_in_modes(one, own, honest=honest).verdict for one in pair]
        together = inspect_in_modes(pair[1], own, honest=honest, earlier=(pair[0],))
        line = {
            "rows": rows,
            "examples": examples,
            "seed": seed,
            "messages": len(owners) * len(models),
            "honest refused": refused,
            "crafted, each alone": alone,
            "crafted, both": together.verdict,
            "rounds_excess": together.values["rounds_excess"],
        }
        print(json.dumps(line), flush=True)
