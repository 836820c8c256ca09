"""Cost of Scale-MIA: read-out with decoding, and a whole round against several baseline implementations.

Run with ``python benchmarks/scale_mia_speed.py``. One thread, CPU seconds of this process, implementations
alternate. ``round``: one gradient per client with one loaded model, summed in float64. ``pooled``: one
gradient over all clients' examples, the same sum if clients are weighted by size.

The slow twin follows the description of the published experiments: every client constructs its model, copies
the sent parameters into it and takes an SGD step on all of them; the server averages whole models, takes the
difference, and processes the bins one by one: difference of rows, bias difference expanded to the width of a
row, quotient, decoder on a single vector. It decodes every bin, because it does not know which are filled.
The told twin is the same, but is given the m bins to decode.
The script twin follows the authors' published script from a batch to its images: a model per client, a pass
over all clients' images with its gradient (from which it learns the bins), biases stored as matrices of the
weights' size, row differences of the m bins one by one, and one call of the decoder, which keeps a graph. Its
scoring and data loading are left out. The script twin with given bins skips that pass and the loop: it
computes all row differences at once.
The lean twin shares our gradient, reads only the first layer and decodes only filled bins. Weights are
random: the cost does not depend on training. ``--threads`` and ``--clock`` (wall-clock instead of CPU
seconds) are for an idle machine.
"""

import argparse
import resource
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from glasshouse.attacks.linear.scale_mia.attack import CHUNK
from glasshouse.attacks.linear.scale_mia.autoencoder import restore_decoder
from glasshouse.attacks.linear.scale_mia.crafting import Head, craft_head, strength
from glasshouse.attacks.linear.scale_mia.decoders import decoder_for
from glasshouse.attacks.parts.readout.linear_leakage import normal_thresholds, read_rows
from glasshouse.attacks.parts.readout.linear_tail import find_tail, latents
from glasshouse.models.build import build
from glasshouse.rng import Rng
from glasshouse.wire import Architecture, Terms

CNN = Architecture.of("scale_mia_cnn", (3, 32, 32), 10)
RATE = 0.1
Groups = tuple[Tensor, ...]


@final
@dataclass(frozen=True, kw_only=True)
class Bench:
    """Data shared by all implementations.

    Attributes:
        model: the crafted model.
        head: its linear layers.
        thresholds: thresholds of the bins.
        layer: name of the first linear layer.
        decoder: the trained decoder.
        quick: the decoder as used in the read-out.
        images: images of all clients.
        labels: labels of all clients.
    """

    model: nn.Module
    head: Head
    thresholds: Tensor
    layer: str
    decoder: nn.Module
    quick: nn.Module
    images: Tensor
    labels: Tensor

    def gradient(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Gradient of the first linear layer; all other gradients are also computed, as a client must."""
        loss = F.cross_entropy(self.model(self.images[rows]), self.labels[rows])
        names = [name for name, _ in self.model.named_parameters()]
        result = dict(zip(names, torch.autograd.grad(loss, list(self.model.parameters())), strict=True))
        return result[f"{self.layer}.weight"], result[f"{self.layer}.bias"]

    def summed(self, groups: Groups) -> tuple[Tensor, Tensor]:
        """The size-weighted mean of all clients' gradients, float64."""
        total = sum(len(g) for g in groups)
        weight, bias = (t.double().mul_(len(groups[0]) / total) for t in self.gradient(groups[0]))
        for rows in groups[1:]:
            w, b = self.gradient(rows)
            weight.add_(w, alpha=len(rows) / total)
            bias.add_(b, alpha=len(rows) / total)
        return weight, bias

    def floor(self, m: int) -> float:
        """Signal threshold below which a bin counts as empty."""
        return 0.3 * float(self.head.levels.abs().min()) / m

    def read(self, weight: Tensor, bias: Tensor, m: int) -> Tensor:
        """Read out as the attack does."""
        leak = read_rows(weight, bias, self.thresholds, floor=self.floor(m), limit=m)
        with torch.no_grad():
            return torch.cat([self.quick(part) for part in torch.split(leak.inputs.float(), CHUNK)])

    def one_by_one(self, weight: Tensor, bias: Tensor, *, above: float = -1.0, told: int = 0) -> list[Tensor]:
        """Read out bin by bin, each decoded separately.

        Bins with a signal not above ``above`` are skipped, or all but the ``told`` strongest.
        """
        out: list[Tensor] = []
        if told:
            strength = torch.cat([bias[:-1] - bias[1:], bias[-1:]]).abs()
            above = float(strength.topk(told + 1).values[-1]) if told < len(strength) else -1.0
        last = len(bias) - 1
        for r in range(len(bias)):
            row, signal = weight[r], bias[r]
            if r < last:
                row, signal = row - weight[r + 1], signal - bias[r + 1]
            if abs(float(signal)) > above:
                latent = row / (signal + 1e-8).expand_as(row)
                with torch.no_grad():
                    out.append(self.decoder(latent.float()[None]))
        return out

    def lean_twin(self, groups: Groups) -> list[Tensor]:
        """Our sum, read out bin by bin."""
        weight, bias = self.summed(groups)
        return self.one_by_one(weight, bias, above=self.floor(sum(len(g) for g in groups)))

    def slow_twin(self, groups: Groups, *, told: bool = False) -> list[Tensor]:
        """A model per client, whole models averaged, every bin (or every filled one) decoded separately."""
        weight, bias = self.averaged(groups)
        return self.one_by_one(weight, bias, told=sum(len(g) for g in groups) if told else 0)

    def averaged(self, groups: Groups) -> tuple[Tensor, Tensor]:
        """The change of the clients' averaged models, as a gradient of the first linear layer."""
        sent = self.model.state_dict()
        answers = []
        for rows in groups:
            client = build(CNN).eval()
            client.load_state_dict(sent)
            optimizer = torch.optim.SGD(client.parameters(), lr=RATE)
            optimizer.zero_grad()
            F.cross_entropy(client(self.images[rows]), self.labels[rows]).backward()
            optimizer.step()
            answers.append({name: t.detach().clone() for name, t in client.state_dict().items()})
        mean = {name: torch.stack([a[name] for a in answers]).mean(0) for name in sent}
        weight, bias = (
            -(mean[f"{self.layer}.{part}"] - sent[f"{self.layer}.{part}"]) / RATE
            for part in ("weight", "bias")
        )
        return weight, bias

    def given_twin(self, groups: Groups, bins: Tensor) -> Tensor:
        """A model per client, whole models averaged, the given bins (m,) decoded in one call."""
        weight, bias = self.averaged(groups)
        rows = torch.cat((weight[:-1] - weight[1:], weight[-1:]))
        signal = torch.cat((bias[:-1] - bias[1:], bias[-1:])) + 1e-8
        latent = rows / signal[:, None].expand_as(rows).clone()
        with torch.no_grad():
            decoded: Tensor = self.decoder(latent[bins].float())
        return decoded

    def script_twin(self, groups: Groups) -> Tensor:
        """The authors' script from a batch to its images (m, C, H, W), most active bin first."""
        images, labels = self.images[torch.cat(groups)], self.labels[torch.cat(groups)]
        sent = self.model.state_dict()
        start, level = sent[f"{self.layer}.weight"], sent[f"{self.layer}.bias"]
        weight, bias = torch.zeros_like(start), torch.zeros_like(start)
        seen: list[Tensor] = []
        for number, rows in enumerate(groups):
            client = build(CNN).train()
            client.load_state_dict(sent)
            optimizer = torch.optim.SGD(client.parameters(), lr=RATE)
            if number == 0:
                layer = client.get_submodule(self.layer)
                hook = layer.register_forward_hook(lambda _module, _inputs, output: seen.append(output))
                loss = F.cross_entropy(client(images), labels)
                hook.remove()
                loss.backward()
            optimizer.zero_grad()
            F.cross_entropy(client(self.images[rows]), self.labels[rows]).backward()
            optimizer.step()
            changed = dict(client.named_parameters())
            weight = weight + changed[f"{self.layer}.weight"].data / len(groups)
            bias = bias + changed[f"{self.layer}.bias"].data[:, None].expand_as(start) / len(groups)
        return self.decoder(
            _one_by_one(-(weight - start) / RATE, -(bias - level[:, None].expand_as(start)) / RATE, seen[0])
        )

    def bins_of(self, m: int) -> Tensor:
        """The bin of each of the first m images, (m,)."""
        with torch.no_grad():
            u = latents(self.model, self.layer)(self.images[:m]).mean(1)
        place: Tensor = torch.searchsorted(self.thresholds, u.double().contiguous()) - 1
        return place.clamp_min(0)


def _one_by_one(weight: Tensor, bias: Tensor, outputs: Tensor) -> Tensor:
    """Latents (m, D) of the bins given by the crafted layer's ``outputs`` (m, R), in the script's loop."""
    last = len(weight) - 1
    places = sorted(last - int((one < 0).count_nonzero()) for one in outputs)
    latent = torch.zeros(len(places), weight.shape[1])
    for i, place in enumerate(reversed(places)):
        if place == last:
            latent[i] = weight[place] / bias[place]
        else:
            latent[i] = (weight[place] - weight[place + 1]) / (bias[place] - bias[place + 1] + 1e-8)
    return latent


def made() -> Bench:
    """Random images of varying brightness, a crafted model, a decoder."""
    model = build(CNN).eval()
    tail = find_tail(model, CNN.input_shape, subject="benchmark")
    decoder = decoder_for(CNN, tail.latent).eval()
    images = torch.rand(1024, 3, 32, 32, generator=Rng.root(0).torch())
    images = images * torch.rand(1024, 1, 1, 1, generator=Rng.root(1).torch())
    with torch.no_grad():
        u = latents(model, tail.names[0])(images).mean(1)
    thresholds = normal_thresholds(u, 1024)
    sizes = {"clients": 1, "cohort": 1, "batch_size": 32}
    terms = Terms(protocol="fedsgd", architecture=CNN, sends="gradient", learning_rate=RATE, **sizes)
    chosen = strength(terms, 0, design="ladder", steps=1, span=0)
    deviation = float(u.std())
    head = craft_head(
        tail, thresholds, deviation=deviation, design="ladder", strength=chosen, rng=Rng.root(3)
    )
    model.load_state_dict({**model.state_dict(), **head.tensors})
    return Bench(
        model=model,
        head=head,
        thresholds=thresholds,
        layer=tail.names[0],
        decoder=decoder,
        quick=restore_decoder(CNN, tail.latent, decoder.state_dict()),
        images=images,
        labels=torch.randint(10, (1024,), generator=Rng.root(2).torch()),
    )


def measure(bench: Bench, m: int, repeats: int, clock: Callable[[], float]) -> dict[str, list[float]]:
    """Seconds by implementation, alternating."""
    groups, everybody = torch.arange(m).chunk(8), (torch.arange(m),)
    weight, bias = bench.summed(groups)
    bins = bench.bins_of(m)
    sides: dict[str, Callable[[], object]] = {
        "read": lambda: bench.read(weight, bias, m),
        "round": lambda: bench.read(*bench.summed(groups), m),
        "pooled": lambda: bench.read(*bench.summed(everybody), m),
        "lean twin": lambda: bench.lean_twin(groups),
        "slow twin": lambda: bench.slow_twin(groups),
        "script twin": lambda: bench.script_twin(groups),
        "script twin, bins given": lambda: bench.given_twin(groups, bins),
        "told twin": lambda: bench.slow_twin(groups, told=True),
    }
    times: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(repeats):
        for name, work in sides.items():
            began = clock()
            work()
            times[name].append(clock() - began)
    return times


def main() -> None:
    """Print the table: medians and minima over all repeats."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--sizes", type=int, nargs="+", default=[64, 256, 1024])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--clock", action="store_true")
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    bench = made()
    for m in given.sizes:
        times = measure(bench, m, given.repeats, time.perf_counter if given.clock else time.process_time)
        middle = {name: statistics.median(values) for name, values in times.items()}
        for name, values in times.items():
            print(f"m = {m}: {name} {1e3 * middle[name]:.1f} ms (fastest {1e3 * min(values):.1f})")
        for twin in (name for name in middle if "twin" in name):
            ratios = [middle[twin] / middle[side] for side in ("round", "pooled")]
            print(f"m = {m}: {twin} ÷ round {ratios[0]:.1f}, ÷ pooled {ratios[1]:.1f}")
    bench.read(*bench.summed(torch.arange(1024).chunk(100)), 1024)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    print(f"100 clients, m = 1024: peak memory {peak:.2f} GB")


if __name__ == "__main__":
    main()
