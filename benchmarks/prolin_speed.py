"""Run time of PROLIN's parts against plain implementations; one thread, CPU seconds.

    python benchmarks/prolin_speed.py round --pairs 200          # shadows and SGD detector, same work
    python benchmarks/prolin_speed.py tau --rounds 150           # optimisation of X and tau, per iteration
    python benchmarks/prolin_speed.py default [--published]      # a round of the default method

The baseline of ``round`` trains every shadow client with a copy of the model, a DataLoader and torch's SGD,
and the detector as a module over a DataLoader. The baseline of ``tau`` stores the whole X and uses autograd.
Data are random numbers of CIFAR-10's shape: the cost does not depend on them.
"""

import argparse
import copy
import math
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from glasshouse.attacks.property.detector import fit, fit_sgd
from glasshouse.attacks.property.discriminant import fit_discriminant
from glasshouse.attacks.property.evidence import Evidence
from glasshouse.attacks.property.gathering import shadow_pairs
from glasshouse.attacks.property.prolin import Problem, solve
from glasshouse.attacks.property.properties import Membership, Pairs, Scene
from glasshouse.models.build import build
from glasshouse.process import prepare_process
from glasshouse.rng import Rng
from glasshouse.transcript.threat import Threat
from glasshouse.transcript.view import View
from glasshouse.wire import Architecture, Batch, Terms

EXAMPLES = 25


def timed(work: Callable[[], object]) -> tuple[float, object]:
    """CPU seconds, and the result."""
    started = time.process_time()
    result = work()
    return time.process_time() - started, result


def stage(pairs: int, pool: int) -> tuple[nn.Module, View, Pairs, Pairs]:
    """A broadcast, and shadow clients for training and for evaluation."""
    draw = torch.Generator().manual_seed(0)
    architecture = Architecture.of("lenet5", (3, 32, 32), 10)
    terms = Terms(
        protocol="fedavg", architecture=architecture, sends="delta", clients=50, cohort=10,
        batch_size=EXAMPLES, learning_rate=0.1,
    )  # fmt: skip
    x = torch.rand(2 * pool, 3, 32, 32, generator=draw)
    y = torch.randint(10, (2 * pool,), generator=draw)
    target = Batch(inputs=torch.rand(1, 3, 32, 32, generator=draw), labels=torch.tensor([3]))
    kept = round(0.2 * pairs)
    items = []
    for part, count in ((slice(0, pool), pairs - kept), (slice(pool, 2 * pool), kept)):
        auxiliary = Batch(inputs=x[part], labels=y[part])
        scene = Scene(auxiliary=auxiliary, challenge=target, terms=terms, examples=EXAMPLES)
        items.append(Membership().pairs(scene, count=count, rng=Rng.root(count)))
    model = build(architecture, rng=Rng.root(1))
    return model, View(terms=terms, threat=Threat(), rounds=()), items[0], items[1]


def plain_shadows(model: nn.Module, view: View, parts: tuple[Pairs, ...]) -> Tensor:
    """Train every shadow client separately."""
    items = []
    start = torch.cat([p.detach().reshape(-1) for p in model.parameters()])
    for cast in [c for p in parts for c in (p.negative, p.positive)]:
        for rows in cast.rows:
            mine = copy.deepcopy(model)
            optimizer = torch.optim.SGD(mine.parameters(), lr=view.terms.learning_rate)
            data = cast.pool.pick(rows)
            for inputs, labels in DataLoader(TensorDataset(data.inputs, data.labels), batch_size=EXAMPLES):
                optimizer.zero_grad()
                nn.functional.cross_entropy(mine(inputs), labels).backward()
                optimizer.step()
            items.append(torch.cat([p.detach().reshape(-1) for p in mine.parameters()]) - start)
    return torch.stack(items)


def plain_detector(train: Tensor, labels: Tensor, test: Tensor, truth: Tensor, epochs: int) -> float:
    """Train the authors' detector with DataLoaders; its best test accuracy."""
    mean, std = train.mean(0), train.std(0, unbiased=False) + 1e-7
    train, test = (train - mean) / std, (test - mean) / std
    net = nn.Sequential(nn.Linear(train.shape[1], 1), nn.Sigmoid())
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    best = 0.0
    for _ in range(epochs):
        for x, y in DataLoader(TensorDataset(train, labels.float()), batch_size=16, shuffle=True):
            optimizer.zero_grad()
            nn.functional.binary_cross_entropy(net(x)[:, 0], y).backward()
            optimizer.step()
        with torch.no_grad():
            sides = [net(x)[:, 0] > 0.5 for (x,) in DataLoader(TensorDataset(test), batch_size=16)]
        best = max(best, float((torch.cat(sides) == truth).double().mean()))
    return best


def one_round(arguments: argparse.Namespace) -> None:
    """Time one round with the same pairs and the same SGD detector."""
    model, view, fresh, heldout = stage(arguments.pairs, arguments.pool)
    count = len(fresh.negative.rows)
    labels, truth = (
        torch.arange(2 * count) >= count,
        torch.arange(2 * len(heldout.negative.rows)) >= len(heldout.negative.rows),
    )

    def ours() -> float:
        tensor = shadow_pairs(model, view, (fresh, heldout), round=0, rng=Rng.root(2))
        test = tensor[2 * count :]
        detector = fit_sgd(
            tensor[: 2 * count], labels, (test, truth), epochs=arguments.epochs, rng=Rng.root(3)
        )
        return float(((detector.features(test) > 0) == truth).double().mean())

    def twin() -> float:
        result = plain_shadows(model, view, (fresh, heldout))
        return plain_detector(result[: 2 * count], labels, result[2 * count :], truth, arguments.epochs)

    fast, accuracy = timed(ours)
    slow, other = timed(twin)
    print(
        f"round, {arguments.pairs} pairs, {arguments.epochs} epochs: ours {fast:.2f} s ({accuracy}), ", end=""
    )
    print(f"twin {slow:.2f} s ({other}), {slow / fast:.2f} times")


def default(arguments: argparse.Namespace) -> None:
    """Time a round of the default method, the discriminant, and with ``--published`` the paper's method."""
    model, view, fresh, heldout = stage(arguments.pairs, arguments.pool)
    count = len(fresh.negative.rows)
    labels = torch.arange(2 * count) >= count

    def sampled() -> object:
        tensor = shadow_pairs(model, view, (fresh, heldout), round=0, rng=Rng.root(2))
        return fit(tensor[: 2 * count], labels, penalty=0.1, iterations=15)

    def exact() -> object:
        return fit_discriminant(model, view.terms, fresh, heldout, shrinkage=1e-5, round=0, rng=Rng.root(2))

    seconds = [[timed(work)[0] for work in (sampled, exact)] for _ in range(3)]
    middle, other = (sorted(column)[1] for column in zip(*seconds, strict=True))
    print(f"default, {arguments.pairs} pairs: {middle:.2f} s a round; discriminant {other:.2f} s")
    if arguments.published:
        model, view, fresh, heldout = stage(5000, 4000)
        many, few = len(fresh.negative.rows), len(heldout.negative.rows)
        sides = torch.arange(2 * many) >= many, torch.arange(2 * few) >= few

        def published() -> object:
            result = shadow_pairs(model, view, (fresh, heldout), round=0, rng=Rng.root(2))
            test = (result[2 * many :], sides[1])
            return fit_sgd(result[: 2 * many], sides[0], test, epochs=50, rng=Rng.root(3))

        slow, _ = timed(published)
        print(f"5,000 pairs, 50 epochs of SGD: {slow:.1f} s a round, {slow / middle:.0f} times the default")


def made_up(rounds: int, clients: int = 50, cohort: int = 10) -> Evidence:
    """Realistic random features: means -10 and 10, standard deviation 8."""
    draw = np.random.default_rng(0)
    present = np.zeros((rounds, clients))
    for row in present:
        row[draw.permutation(clients)[:cohort]] = 1
    x = 8 * draw.normal(size=(rounds, clients)) + 20 * (np.arange(clients) < 5) - 10
    heldout = 8 * draw.normal(size=(rounds, 2, 80, 1)) + 20 * np.arange(2)[None, :, None, None] - 10
    sums = torch.tensor((present * x).sum(1))
    flat = torch.zeros(rounds, 1, dtype=torch.float64)
    return Evidence(
        rounds=tuple(range(rounds)), participation=torch.tensor(present), count=torch.tensor(present.sum(1)),
        kernel=torch.diag(sums)[None], offset=flat, heldout=torch.tensor(heldout), norm=flat,
    )  # fmt: skip


def dense(
    evidence: Evidence, expected: Tensor, x: Tensor, tau: Tensor, iterations: int
) -> tuple[Tensor, Tensor]:
    """The authors' likelihood with the whole X, autograd, and MTAdam tensor by tensor."""
    a, g = evidence.participation, evidence.features[:, 0]
    mean, var, v = evidence.mean[:, :, 0], evidence.variance[:, :, 0], 1 - evidence.overlap[:, 0]
    x, tau = x.clone().requires_grad_(), tau.clone().requires_grad_()
    norms: dict[tuple[int, int], Tensor] = {}
    first, second = {}, {}
    for step in range(1, iterations + 1):
        f = [
            torch.exp(-0.5 * (x - mean[:, c, None]) ** 2 / var[:, c, None])
            / (2 * math.pi * var[:, c, None]).sqrt()
            for c in (0, 1)
        ]
        losses = (
            -torch.log1p(a * (tau * f[1] + (1 - tau) * f[0])).sum(),
            (v * (g - (a * x).sum(1)) ** 2).sum(),
            (((a * x).sum(0) - a.sum(0) * expected) ** 2).sum(),
        )
        changes = []
        for i, p in enumerate((x, tau)):
            grads = [torch.autograd.grad(loss, p, retain_graph=True, allow_unused=True)[0] for loss in losses]
            grads = [torch.zeros_like(p) if t is None else t for t in grads]
            for j, t in enumerate(grads):
                size = t.norm()
                norms[i, j] = size if step == 1 else 0.9 * norms[i, j] + 0.1 * size
            anchor = next((norms[i, j] for j in range(3) if norms[i, j] > 1e-10), norms[i, 0])
            widest, move = torch.zeros_like(p), torch.zeros_like(p)
            for j, t in enumerate(grads):
                t = t * anchor / norms[i, j] if norms[i, j] > 1e-10 else t
                first[i, j] = 0.9 * first.get((i, j), 0) + 0.1 * t
                second[i, j] = 0.999 * second.get((i, j), 0) + 0.001 * t * t
                widest = torch.maximum(widest, (second[i, j] / (1 - 0.999**step)).sqrt() + 1e-8)
                move = move + first[i, j]
            changes.append(1e-3 / (1 - 0.9**step) * move / widest)
        x = (x - changes[0]).detach().requires_grad_()
        tau = (tau - changes[1]).detach().clamp(0, 1).requires_grad_()
    return x.detach(), tau.detach()


def tau(arguments: argparse.Namespace) -> None:
    """Time the same trajectory, sparse with analytic gradients and dense with autograd."""
    evidence = made_up(arguments.rounds)
    draw = torch.Generator().manual_seed(1)
    x = torch.rand(arguments.rounds, 50, generator=draw, dtype=torch.float64)
    first = torch.rand(50, generator=draw, dtype=torch.float64)
    problem = Problem.of(evidence, (arguments.rounds,), ridge=5.0, variant="reference")
    present = evidence.participation.numpy() > 0
    start = x.numpy()[present][:, None]
    result: Any
    fast, result = timed(lambda: solve(problem, start, first.numpy(), iterations=arguments.iterations))
    expected = torch.tensor(problem.expected[:, 0])
    slow, other = timed(lambda: dense(evidence, expected, x, first, arguments.iterations))
    each = [seconds / arguments.iterations * 1e3 for seconds in (fast, slow)]
    gaps = [
        np.abs(result.tau - other[1].numpy()).max(),
        np.abs(result.x[:, 0] - other[0].numpy()[present]).max(),
    ]
    print(f"tau, n = {arguments.rounds}, {arguments.iterations} iterations: ", end="")
    print(f"ours {each[0]:.3f} ms, twin {each[1]:.3f} ms each, {slow / fast:.1f} times; ", end="")
    print(f"largest difference: tau {gaps[0]:.1e}, X {gaps[1]:.1e}")


def main() -> None:
    """Parse the command line and run."""
    prepare_process()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    commands = parser.add_subparsers(required=True)
    for name, do in (("round", one_round), ("default", default), ("tau", tau)):
        one = commands.add_parser(name)
        one.add_argument("--pairs", type=int, default=200 if name == "round" else 400)
        one.add_argument("--pool", type=int, default=1500)
        one.add_argument("--epochs", type=int, default=50)
        one.add_argument("--rounds", type=int, default=150)
        one.add_argument("--iterations", type=int, default=3000)
        one.add_argument("--published", action="store_true")
        one.set_defaults(do=do)
    arguments = parser.parse_args()
    arguments.do(arguments)


if __name__ == "__main__":
    main()
