"""Crafted models trained against the guard, and crafted models with all that is known of its rules.

An adversary who has read the source raises the share of a batch that its own read-outs isolate, and keeps
below the guard's limits what the guard finds. The guard's search is run again and again on the server's own
pictures while it trains; what it finds is held fixed in between and lowered, so that the model is trained
against the search itself. Every minute the whole guard judges the model; the best that passes is kept.
"""

import copy
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.guard import kinds
from glasshouse.guard.pursuit.crowds import search_crowds
from glasshouse.guard.pursuit.examples import Own
from glasshouse.guard.pursuit.inspect import HonestRanges, inspect_in_modes
from glasshouse.guard.pursuit.limits import CLEAR, ROUNDING
from glasshouse.guard.pursuit.search import search

CHECKED: Final = 60.0
"""CPU seconds between two verdicts of the whole guard on the way."""
REFRESHED: Final = 12
"""Steps between two searches."""
_LIMIT: Final = 0.8  # of the guard's limits, which the adversary keeps to


def _starts() -> dict[str, Callable[[Tensor, int], kinds.Case]]:
    def windows(width: int, rows: int, tail: int) -> Callable[[Tensor, int], kinds.Case]:
        return lambda known, seed: kinds.windows(known, seed, width=width, rows=rows, tail=tail)

    def halves(rows: int, tail: int, *, paired: bool = False) -> Callable[[Tensor, int], kinds.Case]:
        return lambda known, seed: kinds.halves(known, seed, rows=rows, tail=tail, paired=paired)

    return {
        "halves": halves(256, 32),
        "halves, 64 units behind": halves(384, 64),
        "halves, paired": halves(256, 32, paired=True),
        "windows of 13 among 1,024 rows": windows(13, 1024, 32),
        "windows of 21 among 256 rows": windows(21, 256, 32),
        "windows of 21 among 512 rows": windows(21, 512, 32),
        "windows of 41 among 1,024 rows, 64 units behind": windows(41, 1024, 64),
        "pairs": windows(2, 256, 32),
    }


STARTS: Final[Mapping[str, Callable[[Tensor, int], kinds.Case]]] = _starts()


@dataclass(kw_only=True)
class Adversary:
    """A model and read-outs in training, and the best so far that the guard passes.

    Attributes:
        case: what is trained.
        weight: of what the guard finds beyond its limits.
        spent: CPU seconds.
        best: share of a batch that the best model that passes gives away; negative: none passed.
        kept: that model's tensors and read-outs.
    """

    case: kinds.Case
    weight: float = 1.0
    spent: float = 0.0
    best: float = -1.0
    kept: dict[str, Tensor] | None = None

    def tensors(self) -> dict[str, Tensor]:
        """The case as tensors."""
        own = {f"model.{name}": t.detach().clone() for name, t in self.case.model.state_dict().items()}
        return {**own, "read_outs": self.case.read_outs.detach().clone()}

    def save(self, path: Path) -> None:
        """Keep the state beside the results."""
        kept = {f"kept.{name}": t for name, t in (self.kept or {}).items()}
        numbers = {"weight": self.weight, "spent": self.spent, "best": self.best}
        save_file({**self.tensors(), **kept}, path, metadata={"state": json.dumps(numbers)})

    def load(self, path: Path) -> None:
        """Go on from a state."""
        from safetensors import safe_open  # noqa: PLC0415  # only where a run is resumed

        with safe_open(path, "pt") as file:
            numbers = json.loads(file.metadata()["state"])
        self.weight, self.spent, self.best = numbers["weight"], numbers["spent"], numbers["best"]
        tensors = load_file(path)
        kept = {n.removeprefix("kept."): tensors.pop(n) for n in list(tensors) if n.startswith("kept.")}
        self.kept = kept or None
        self.case = as_case(self.case, tensors)


def as_case(like: kinds.Case, tensors: Mapping[str, Tensor]) -> kinds.Case:
    """A case with the values of ``tensors``."""
    model = copy.deepcopy(like.model)
    model.load_state_dict({n.removeprefix("model."): t for n, t in tensors.items() if n.startswith("model.")})
    return kinds.Case(model=model, read_outs=tensors["read_outs"].clone())


def train_against(case: kinds.Case, known: Own, *, seconds: float, state: Path) -> kinds.Case:
    """``case`` after ``seconds`` CPU seconds of training against the guard, on the server's own pictures.

    Args:
        case: one wide layer and its read-outs.
        known: the server's pictures, with labels.
        seconds: of this process.
        state: where the training goes on if it was interrupted.

    Returns:
        The best that the guard passed on the server's pictures; if none did, the last.
    """
    adversary = Adversary(case=case)
    if state.exists():
        adversary.load(state)
    honest = HonestRanges.of(case.model, known)
    limits = honest.known("train").of(("wide.weight",)).focused
    checked = time.process_time()
    _check(adversary, known, honest)
    generator = torch.Generator().manual_seed(round(adversary.spent))
    while adversary.spent < seconds:
        _descend(adversary, known, generator, most=(_LIMIT * limits.rows, _LIMIT * limits.excess))
        adversary.spent += time.process_time() - checked
        checked = time.process_time()
        _check(adversary, known, honest)
        adversary.save(state)
    return adversary.case if adversary.kept is None else as_case(adversary.case, adversary.kept)


def _check(adversary: Adversary, known: Own, honest: HonestRanges) -> None:
    """Keep the model if it passes and reads more than all before; be more or less careful accordingly."""
    passes = inspect_in_modes(adversary.case.model, known, honest=honest).verdict == "passed"
    reads = 0.0
    for part in range(4):
        some = known[part * kinds.BATCH : (part + 1) * kinds.BATCH]
        update = kinds.gradient(adversary.case.model, some.inputs, some.targets)
        reads += float(kinds.read(adversary.case, [update], some.inputs)[1].double().mean()) / 4
    adversary.weight *= 1 / 1.3 if passes else 1.6
    if passes and reads > adversary.best:
        adversary.best, adversary.kept = reads, adversary.tensors()
    line = f"  {adversary.spent:.0f} s: reads {reads:.3f}, {'passes' if passes else 'refused'}"
    print(f"{line}, best {adversary.best:.3f}, weight {adversary.weight:.2g}", flush=True)


def _descend(
    adversary: Adversary, known: Own, generator: torch.Generator, *, most: tuple[float, float]
) -> None:
    """A minute of training."""
    model, read_outs = adversary.case.model, nn.Parameter(adversary.case.read_outs.clone())
    offsets = [p for name, p in model.named_parameters() if name.endswith("bias")]
    others = [p for name, p in model.named_parameters() if not name.endswith("bias")]
    groups = [(others, 1e-7), (offsets, 2e-6), ([read_outs], 1e-5)]
    optimizer = torch.optim.Adam([{"params": params, "lr": rate} for params, rate in groups])
    started, step, found = time.process_time(), 0, torch.zeros(0, 0)
    single = torch.eye(model.count)
    while time.process_time() - started < CHECKED:
        order = torch.randperm(len(known), generator=generator)[: 3 * kinds.BATCH]
        if step % REFRESHED == 0:
            found = _as_matrix(pulls_on_wide(model, known[order[kinds.BATCH :]]).detach(), model.count)
        pulls = pulls_on_wide(model, known[order[: kinds.BATCH]])
        leak = _isolated(pulls, read_outs).mean()
        alone = _isolated(pulls, single)
        both = torch.maximum(_isolated(pulls, found), alone)
        beyond = F.relu(alone.mean() - most[0]) + F.relu((both - alone).mean() - most[1])
        optimizer.zero_grad()
        torch.autograd.backward(adversary.weight * beyond - leak)
        optimizer.step()
        step += 1
    adversary.case = kinds.Case(model=model, read_outs=read_outs.detach())


def _as_matrix(pulls: Tensor, rows: int) -> Tensor:
    """What the guard's search finds, as weights of all rows, (C, R)."""
    found = search(pulls) + search_crowds(pulls)
    matrix = torch.zeros(len(found.rows), rows, dtype=torch.double)
    matrix.scatter_add_(1, found.rows, found.weights)
    return F.normalize(matrix, dim=1).float()


def pulls_on_wide(model: kinds.Net, some: Own) -> Tensor:
    """Pulls (B, R) on the wide layer, differentiable in the model's parameters."""
    shift = torch.zeros(len(some), model.count, requires_grad=True)
    inner = model.activation
    model.activation = lambda wide: inner(wide + shift)
    goal = F.cross_entropy(model(some.inputs), some.targets, reduction="sum")
    model.activation = inner
    return torch.autograd.grad(goal, shift, create_graph=True)[0]


def _isolated(pulls: Tensor, read_outs: Tensor) -> Tensor:
    """How surely each example (B,) dominates one of the read-outs (C, R) at 30 dB, in (0, 1)."""
    pulls = pulls / pulls.detach().square().mean().sqrt().clamp_min(1e-12)
    energy = (pulls @ read_outs.T).square()
    noise = ROUNDING**2 * (read_outs.square() @ pulls.square().sum(0))
    rest = energy.sum(0) - energy + noise + 1e-12
    odds = (energy + 1e-12).log() - rest.log()
    wanted = torch.tensor(CLEAR / (1 - CLEAR)).log()
    # Flat enough that read-outs far from isolating anybody still learn.
    return torch.sigmoid((odds.amax(1) - wanted) / 3)
