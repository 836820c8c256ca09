"""Cost of Scale-MIA: read-out with decoding, and a whole round against a slow twin.

Run with ``python benchmarks/scale_mia_speed.py``. One thread, CPU seconds of this process, all sides in turn.
The twin builds a model for every client, and subtracts, divides and decodes one bin after the other.
``pooled`` computes one gradient over all clients' examples: the same sum where clients are weighted
by size. Weights are random: the cost does not depend on training.
"""

import resource
import statistics
import time
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

from glasshouse.attacks.linear.scale_mia.crafting import crafted_head, strength
from glasshouse.attacks.linear.scale_mia.decoders import decoder_for
from glasshouse.attacks.parts.linear_leakage import normal_thresholds, read_rows
from glasshouse.attacks.parts.linear_tail import find_tail, latents
from glasshouse.models.build import build
from glasshouse.rng import Rng
from glasshouse.wire import Architecture

CNN = Architecture(name="scale_mia_cnn", input_shape=(3, 32, 32), classes=10)
REPEATS = 7


def seconds(work: Callable[[], object]) -> float:
    """CPU seconds of one call."""
    began = time.process_time()
    work()
    return time.process_time() - began


def main() -> None:  # noqa: PLR0915  # a script, top to bottom
    """Print the table."""
    torch.set_num_threads(1)
    model = build(CNN).eval()
    tail = find_tail(model, CNN.input_shape, subject="benchmark")
    decoder = decoder_for(CNN, tail.latent).eval().to(memory_format=torch.channels_last)
    images = torch.rand(1024, 3, 32, 32, generator=Rng.root(0).torch())
    images = images * torch.rand(1024, 1, 1, 1, generator=Rng.root(1).torch())
    labels = torch.randint(10, (1024,), generator=Rng.root(2).torch())
    with torch.no_grad():
        u = latents(model, tail.names[0])(images).mean(1)
    thresholds = normal_thresholds(u, 1024)
    chosen = strength(design="ladder", sends="gradient", steps=1, batch=32, rate=0.1, span=0)
    head = crafted_head(
        tail, thresholds, deviation=float(u.std()), design="ladder", strength=chosen, rng=Rng.root(3)
    )
    model.load_state_dict({**model.state_dict(), **head.tensors})
    layer = model.get_submodule(tail.names[0])

    def gradient(of: torch.nn.Module, rows: Tensor) -> list[Tensor]:
        loss = F.cross_entropy(of(images[rows]), labels[rows])
        names = [name for name, _ in of.named_parameters()]
        found = dict(zip(names, torch.autograd.grad(loss, list(of.parameters())), strict=True))
        return [found[f"{tail.names[0]}.weight"], found[f"{tail.names[0]}.bias"]]

    def read(weight: Tensor, bias: Tensor, m: int) -> Tensor:
        floor = 0.3 * float(head.levels.abs().min()) / m
        leak = read_rows(weight, bias, thresholds, floor=floor, limit=m)
        with torch.no_grad():
            return torch.cat([decoder(part) for part in torch.split(leak.inputs.float(), 64)])

    def summed(groups: tuple[Tensor, ...], *, anew: bool) -> tuple[Tensor, Tensor]:
        weight = torch.zeros_like(layer.weight, dtype=torch.float64)
        bias = torch.zeros_like(layer.bias, dtype=torch.float64)
        total = sum(len(g) for g in groups)
        for rows in groups:
            client = model
            if anew:
                client = build(CNN).eval()
                client.load_state_dict(model.state_dict())
            w, b = gradient(client, rows)
            weight.add_(w, alpha=len(rows) / total)
            bias.add_(b, alpha=len(rows) / total)
        return weight, bias

    def twin(groups: tuple[Tensor, ...]) -> None:
        weight, bias = summed(groups, anew=True)
        m = sum(len(g) for g in groups)
        floor = 0.3 * float(head.levels.abs().min()) / m
        for r in range(len(thresholds)):
            last = r + 1 == len(thresholds)
            signal = bias[r] - (0 if last else bias[r + 1])
            if abs(float(signal)) > floor:
                latent = (weight[r] - (0 if last else weight[r + 1])) / signal
                with torch.no_grad():
                    decoder(latent.float()[None])

    for m in (64, 256):
        groups = torch.arange(m).chunk(8)
        weight, bias = summed(groups, anew=False)
        times: dict[str, list[float]] = {"read": [], "round": [], "pooled": [], "twin": []}
        for _ in range(REPEATS):
            times["read"].append(seconds(lambda w=weight, b=bias, n=m: read(w, b, n)))
            times["round"].append(seconds(lambda g=groups, n=m: read(*summed(g, anew=False), n)))
            times["pooled"].append(seconds(lambda n=m: read(*summed((torch.arange(n),), anew=False), n)))
            times["twin"].append(seconds(lambda g=groups: twin(g)))
        middle = {name: statistics.median(values) for name, values in times.items()}
        print(
            f"m = {m}: read-out and decoding {1e3 * middle['read']:.1f} ms; "
            f"round {1e3 * middle['round']:.0f} ms, "
            f"pooled {1e3 * middle['pooled']:.0f} ms, twin {1e3 * middle['twin']:.0f} ms: "
            f"{middle['twin'] / middle['round']:.1f} and {middle['twin'] / middle['pooled']:.1f} times"
        )
    read(*summed(torch.arange(1024).chunk(100), anew=False), 1024)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    print(f"100 clients, m = 1024: peak memory {peak:.2f} GB")


if __name__ == "__main__":
    main()
