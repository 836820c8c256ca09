"""What a sum hides of one client's images: what preflight says, and what a blind server reads.

    python -m benchmarks.guard sums

A cohort of clients with 32 CIFAR-10 test images each computes one undefended step, on an honest MLP and
behind the bins of Robbing the Fed; the first client is asked, with other test images as stand-ins of the
others. Read: a row, or a difference of neighbouring rows, divided by its bias, comes within 18 dB of an
image. Not named: of those read in the sum.
"""

import argparse
import functools

import torch
from torch import Tensor, nn

from benchmarks.active import play_out
from benchmarks.guard.truth import Rows, cifar, known, received
from glasshouse.attacks.linear.robbing_the_fed import RobbingTheFed
from glasshouse.guard.in_sum import preflight_in_sum
from glasshouse.rng import Rng

EACH = 32
MODELS = {"MLP of 512 units": Rows} | {
    f"bins (Robbing the Fed), {rows} rows": functools.partial(RobbingTheFed, bins=rows) for rows in (640, 160)
}
"""By name: the attack that looks on, or crafts."""


def read(update: dict[str, Tensor], layer: str, images: Tensor) -> set[int]:
    """Numbers of the images that a blind server reads off the layer."""
    sides = [update[f"{layer}.{part}"].double() for part in ("weight", "bias")]
    weight, bias = (torch.cat([side, side.diff(dim=0)]) for side in sides)
    kept = bias.abs() > 1e-9 * bias.abs().max()
    claimed = (weight[kept] / bias[kept, None]).clamp(0, 1)
    goals = images.flatten(1).double()
    errors = torch.cdist(claimed, goals).square().amin(0) / goals.shape[1]
    return set((errors < 10**-1.8).nonzero()[:, 0].tolist())


def row(name: str, clients: int, seed: int) -> str:
    """One cohort, as a line of the table."""
    pool = cifar("test")
    order = torch.randperm(len(pool), generator=Rng.root(seed, salt=f"sums {clients}").torch())
    private, others = (pool.pick(part) for part in order[: 2 * EACH * clients].chunk(2))
    how = {"auxiliary": known(), "arguments": {"hidden": "512", "mean": 0.0, "std": 1.0}, "seed": seed}
    played = play_out(MODELS[name](), private, clients=clients, **how)
    updates = [one.tensors for one in played.transcript.rounds[0].updates]
    model = received(played)
    layer = next(n for n, module in model.named_modules() if isinstance(module, nn.Linear))
    mine, own = private.pick(torch.arange(EACH)), dict(updates[0])
    batches = (mine.inputs, mine.labels), (others.inputs, others.labels)
    seen = preflight_in_sum(own, model, *batches, clients=clients, kind="gradient")
    in_sum = read({n: sum(one[n] for one in updates) for n in own}, layer, mine.inputs)
    standing = {leak.example for leak in seen.leaks if leak.what == "input"}
    counts = len(seen.alone.standing("input")), len(standing), len(read(own, layer, mine.inputs)), len(in_sum)
    return f"| {name}, {clients} | {' | '.join(map(str, counts))} | {len(in_sum - standing)} |"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--seed", type=int, default=0)
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    columns = (
        "model, clients | stand alone | stand in the sum | read alone | read in the sum | of these not named"
    )
    print(f"| {columns} |\n|{'---|' * 6}")
    for name in MODELS:
        for clients in (2, 10):
            print(row(name, clients, chosen.seed), flush=True)
