"""Crafted models trained against the guard, and crafted models with all that is known of its rules.

An adversary who has read the source raises the share of a batch that its own read-outs isolate, and keeps
below the guard's limits what the guard finds: by single rows, by few rows and by many. The guard's searches
are run again and again on the server's own pictures while it trains; what they find is held fixed in between
and lowered, each down to its limit. Every minute the whole guard judges the model; the best that passes is
kept.
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
from glasshouse.guard.pursuit.crowds import search_completed, search_crowds
from glasshouse.guard.pursuit.examples import Own
from glasshouse.guard.pursuit.found import Given
from glasshouse.guard.pursuit.inspect import HonestRanges, inspect_in_modes
from glasshouse.guard.pursuit.limits import CLEAR, ROUNDING
from glasshouse.guard.pursuit.search import ReadOuts, search

CHECKED: Final = 60.0
"""CPU seconds between two verdicts of the whole guard on the way."""
REFRESHED: Final = 12
"""Steps between two searches."""
SHOWN: Final = ("rows", "excess", "crowds")
"""Measures at 30 dB that are reported on the way, each with its limit."""
_LIMIT: Final = 0.8  # of the guard's limits, which the adversary keeps to


def _starts() -> dict[str, Callable[[Tensor, int], kinds.Case]]:
    def windows(width: int, rows: int, tail: int) -> Callable[[Tensor, int], kinds.Case]:
        return lambda known, seed: kinds.windows(known, seed, width=width, rows=rows, tail=tail)

    def halves(rows: int, tail: int, *, paired: bool = False) -> Callable[[Tensor, int], kinds.Case]:
        return lambda known, seed: kinds.halves(known, seed, rows=rows, tail=tail, paired=paired)

    return {
        "halves": halves(256, 32),
        "halves, 64 units behind": halves(384, 64),
        "halves, leaky": lambda known, seed: kinds.halves(known, seed, wide=("linear", 0.01)),
        "halves, paired": halves(256, 32, paired=True),
        "halves, paired, of a convolution": lambda known, seed: kinds.halves(
            known, seed, paired=True, wide=("pointwise", 0.0)
        ),
        "halves, paired, of an own parameter": lambda known, seed: kinds.halves(
            known, seed, paired=True, wide=("parameter", 0.0)
        ),
        "halves, far out": lambda known, seed: kinds.halves(known, seed, below=(0.93, 0.95)),
        "halves over two rounds": kinds.halves_of_rounds,
        "halves in blocks of their own": lambda known, seed: kinds.halves(
            known, seed, rows=2080, below=(0.05, 0.42)
        ),
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
    limits = honest.known("train").of(("wide.weight",)).limits
    checked = time.process_time()
    _check(adversary, known, honest)
    generator = torch.Generator().manual_seed(round(adversary.spent))
    while adversary.spent < seconds:
        _descend(adversary, known, generator, limits)
        adversary.spent += time.process_time() - checked
        checked = time.process_time()
        _check(adversary, known, honest)
        adversary.save(state)
    return adversary.case if adversary.kept is None else as_case(adversary.case, adversary.kept)


def _check(adversary: Adversary, known: Own, honest: HonestRanges) -> None:
    """Keep the model if it passes and reads more than all before; be more or less careful accordingly."""
    judged = inspect_in_modes(adversary.case.model, known, honest=honest)
    passes, values = judged.verdict == "passed", judged.values
    reads = 0.0
    for part in range(4):
        some = known[part * kinds.BATCH : (part + 1) * kinds.BATCH]
        update = kinds.gradient(adversary.case.model, some.inputs, some.targets)
        reads += float(kinds.read(adversary.case, [update], some.inputs)[1].double().mean()) / 4
    adversary.weight *= 1 / 1.3 if passes else 1.6
    if passes and reads > adversary.best:
        adversary.best, adversary.kept = reads, adversary.tensors()
    shown = ", ".join(f"{m} {values[m]:.3f} of {values[f'{m}_limit']:.3f}" for m in SHOWN)
    line = f"  {adversary.spent:.0f} s: reads {reads:.3f}, {'passes' if passes else 'refused'} ({shown})"
    print(f"{line}, best {adversary.best:.3f}, weight {adversary.weight:.2g}", flush=True)


def _descend(adversary: Adversary, known: Own, generator: torch.Generator, limits: Given) -> None:
    """A minute of training."""
    model, read_outs = adversary.case.model, nn.Parameter(adversary.case.read_outs.clone())
    offsets = [p for name, p in model.named_parameters() if name.endswith("bias")]
    others = [p for name, p in model.named_parameters() if not name.endswith("bias")]
    groups = [(others, 1e-7), (offsets, 2e-6), ([read_outs], 1e-5)]
    optimizer = torch.optim.Adam([{"params": params, "lr": rate} for params, rate in groups])
    started, step = time.process_time(), 0
    found: dict[str, Tensor] = {}
    single = torch.eye(model.count)
    while time.process_time() - started < CHECKED:
        order = torch.randperm(len(known), generator=generator)[: 3 * kinds.BATCH]
        if step % REFRESHED == 0:
            wide, behind = pulls_on(model, known[order[kinds.BATCH :]])
            found = _found(wide.detach(), behind.detach())
        wide, behind = pulls_on(model, known[order[: kinds.BATCH]])
        leak = _odds(wide, read_outs)
        alone = _odds(wide, single)
        beyond = _beyond(alone, torch.full_like(alone, -torch.inf), limits.rows)
        both = torch.cat([wide, behind], 1)
        for measure, matrix in found.items():
            beyond = beyond + _beyond(_odds(both, matrix), alone, getattr(limits, measure))
        optimizer.zero_grad()
        torch.autograd.backward(adversary.weight * beyond - _surely(leak).mean())
        optimizer.step()
        step += 1
    adversary.case = kinds.Case(model=model, read_outs=read_outs.detach())


def _beyond(odds: Tensor, alone: Tensor, limit: float) -> Tensor:
    """What read-outs isolate beyond others, to be lowered; 0 where that keeps to the guard's limit."""
    added = float((torch.maximum(odds, alone) > 0).double().mean() - (alone > 0).double().mean())
    return (_surely(torch.maximum(odds, alone)) - _surely(alone)).mean() * (added > _LIMIT * limit)


def _found(wide: Tensor, behind: Tensor) -> dict[str, Tensor]:
    """What the guard's searches find, as weights of all rows and of what units behind pass back."""
    width = wide.shape[1] + behind.shape[1]
    of = {"excess": search(wide), "crowds": search_crowds(wide) + search_completed(wide, behind)}
    return {measure: _as_matrix(found, width) for measure, found in of.items() if len(found.rows)}


def _as_matrix(found: ReadOuts, rows: int) -> Tensor:
    """Read-outs as weights of all rows, (C, R)."""
    matrix = torch.zeros(len(found.rows), rows, dtype=torch.double)
    matrix.scatter_add_(1, found.rows, found.weights)
    return F.normalize(matrix, dim=1).float()


def pulls_on(model: kinds.Net, some: Own) -> tuple[Tensor, Tensor]:
    """Pulls on the wide layer (B, R), and on the one behind (B, K), as if that read the same.

    Both are differentiable in the model's parameters.
    """
    shifts = tuple(
        torch.zeros(len(some), n, requires_grad=True) for n in (model.count, len(model.middle.bias))
    )
    inner, number = model.activation, iter(shifts)
    model.activation = lambda wide: inner(wide + next(number))
    handle = model.middle.register_forward_hook(lambda *seen: seen[2] + next(number))
    goal = F.cross_entropy(model(some.inputs), some.targets, reduction="sum")
    model.activation = inner
    handle.remove()
    wide, behind = torch.autograd.grad(goal, shifts, create_graph=True)
    reach = torch.linalg.vector_norm(some.inputs.flatten(1), dim=1, keepdim=True)
    return wide * reach, behind * reach


def _odds(pulls: Tensor, read_outs: Tensor) -> Tensor:
    """Log odds of each example (B,) in the read-out (C, R) that it dominates most, less those of 30 dB."""
    pulls = pulls / pulls.detach().square().mean().sqrt().clamp_min(1e-12)
    energy = (pulls @ read_outs.T).square()
    noise = ROUNDING**2 * (read_outs.square() @ pulls.square().sum(0))
    rest = energy.sum(0) - energy + noise + 1e-12
    wanted = torch.tensor(CLEAR / (1 - CLEAR)).log()
    return ((energy + 1e-12).log() - rest.log()).amax(1) - wanted


def _surely(odds: Tensor) -> Tensor:
    """In (0, 1), and flat enough that read-outs far from isolating anybody still learn."""
    return torch.sigmoid(odds / 3)
