"""Remedies for an update that exposes examples, applied before it is sent: one function each.

A remedy returns the update to send instead, with all examples behind it; None: it cannot be applied.
"""

import copy
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, final

import torch
from torch import Tensor, nn

from glasshouse.guard.layers.standing import Leak
from glasshouse.guard.layers.trace import trace
from glasshouse.guard.preflight import Examples, Preflight
from glasshouse.guard.pursued import Memory
from glasshouse.guard.pursuit.examples import Own
from glasshouse.guard.pursuit.rows import FIRST, without_rows
from glasshouse.interfaces import losses_of
from glasshouse.tensors import norm
from glasshouse.wire import Batch, Kind

Train = Callable[[Tensor, Tensor], Mapping[str, Tensor]]
"""Computes the update from training the received model on these examples."""

MOST: Final = 0.5
"""A remedy that changes the update by more than this share of its norm makes it not worth sending."""
HIDDEN: Final = 0.7
"""Share of an example's contrast that must be missing from what is sent: stricter than preflight."""
PASSES: Final = 6
"""Maximum number of passes that drop rows: once some are gone, others may expose an example."""
STRENGTHS: Final = tuple(2.0**k for k in range(-5, 5))
"""Candidate standard deviations of the noise, relative to the root mean square of the tensor."""


@final
@dataclass(frozen=True, kw_only=True)
class Case:
    """An update that may expose examples, and what it was computed from.

    Attributes:
        update: by parameter name.
        model: as received.
        inputs: of all examples behind the update, (B, ...).
        labels: their classes, (B,).
        kind: ``gradient`` or ``delta``.
        train: computes the update of other examples; None: it cannot be recomputed.
        memory: further own examples, and what was sent a round ago.
        behind: the examples' contributions to the update; None: they are computed by a pass.
        copies: versions of each image among the examples; 1: no rotated copies.
    """

    update: Mapping[str, Tensor]
    model: nn.Module
    inputs: Tensor
    labels: Tensor
    kind: Kind
    train: Train | None = None
    memory: Memory | None = None
    behind: Examples | None = None
    copies: int = 1

    def check(self) -> Preflight:
        """What is exposed, or nearly exposed, in the update."""
        return self.examples().find_in(self.update, recognised=HIDDEN)

    def passes(self) -> bool:
        """Whether a pass of the examples through the models before and after finds nothing either."""
        return not self._by_a_pass().find_in(self.update).leaks

    def examples(self) -> Examples:
        """The examples' contributions to the original update."""
        return self._by_a_pass() if self.behind is None else self.behind

    def _by_a_pass(self) -> Examples:
        return Examples.behind(
            self.update,
            self.model,
            Own(inputs=self.inputs, targets=self.labels),
            kind=self.kind,
            memory=self.memory,
            copies=self.copies,
        )

    def _again(self, inputs: Tensor, labels: Tensor) -> "Case | None":
        """The case of an update recomputed from these examples."""
        if self.train is None:
            return None
        update = {name: t.detach() for name, t in self.train(inputs, labels).items()}
        return replace(self, update=update, inputs=inputs, labels=labels, behind=None).known()

    def known(self) -> "Case":
        """The case with its examples' contributions, computed once before remedies change the update."""
        return replace(self, behind=self.examples())


def gradient_of(
    model: nn.Module, inputs: Tensor, labels: Tensor, weights: Tensor | None = None
) -> dict[str, Tensor]:
    """The gradient of the mean loss, with examples weighted by ``weights``, (B,).

    ``model`` is not modified, including its running statistics.
    """
    work = copy.deepcopy(model)
    trained = {name: p for name, p in work.named_parameters() if p.requires_grad}
    losses = losses_of(work, Batch(inputs=inputs, labels=labels))
    loss = (losses if weights is None else losses * weights).mean()
    gradients: tuple[Tensor | None, ...] = torch.autograd.grad(
        loss, list(trained.values()), allow_unused=True
    )
    return {name: g for name, g in zip(trained, gradients, strict=True) if g is not None}


def drop_rows(case: Case) -> Case | None:
    """Zero the rows that expose an example, and their biases; other rows are unchanged."""
    update = {name: t.clone() for name, t in case.update.items()}
    for _ in range(PASSES):
        case = replace(case, update=update)
        leaks = case.check().leaks
        if not leaks:
            break
        for leak in leaks:
            for name in names_of(leak, update):
                axes = leak.axes if name == leak.tensor else FIRST
                update[name] = without_rows(update[name], axes, leak.rows)
    return case


def names_of(leak: Leak, update: Mapping[str, Tensor]) -> list[str]:
    """The tensors of an update in which a leak shows: the weight, and a bias of as many rows."""
    weight, bias = (f"{leak.layer}.{part}".removeprefix(".") for part in ("weight", "bias"))
    names = [leak.tensor or weight] if leak.axes != FIRST else [leak.tensor, weight, bias]
    known = [name for name in dict.fromkeys(names) if name in update]
    return [name for name in known if len(update[name]) == len(update[known[0]]) or leak.axes != FIRST]


def clip_examples(case: Case) -> Case | None:
    """Clip each example's gradient to the median norm; only for the gradient of one step."""
    if case.kind != "gradient":
        return None
    layers = trace(case.model, case.inputs, case.labels)
    lengths = torch.stack([one.sizes.norm(dim=1) for one in layers]).norm(dim=0)
    weights = (lengths.median() / lengths.clamp_min(torch.finfo(torch.double).tiny)).clamp_max(1)
    update = gradient_of(case.model, case.inputs, case.labels, weights.to(case.inputs.dtype))
    return replace(case, update={name: t for name, t in update.items() if name in case.update})


def add_copies(case: Case) -> Case | None:
    """Also train on rotated and mirrored copies of images, so that units respond to several pictures.

    Source: Jeter et al. 2023, "OASIS: Offsetting Active Reconstruction Attacks in Federated Learning",
    arXiv:2311.13739. A copy that is exposed in the update counts like the image itself.
    """
    images = case.inputs
    if images.ndim != 4 or images.shape[2] != images.shape[3]:
        return None
    copies = [images, images.flip(3), *(torch.rot90(images, turns, (2, 3)) for turns in (1, 2, 3))]
    return replace(case, copies=len(copies))._again(torch.cat(copies), case.labels.repeat(len(copies)))


def grow_batch(case: Case) -> Case | None:
    """Also train on further examples of the client."""
    if case.memory is None or case.memory.others is None:
        return None
    inputs, labels = case.memory.others
    case = replace(case, memory=replace(case.memory, others=None))  # they are in the batch now
    return case._again(torch.cat([case.inputs, inputs]), torch.cat([case.labels, labels]))


def add_noise(case: Case) -> Case | None:
    """Add Gaussian noise to the layers that expose an example, with a margin.

    A server that knows all rows that expose an example can average the noise over them: the smallest strength
    that hides all from preflight is multiplied by the square root of the largest number of such rows. None:
    the required noise changes the update by more than ``MOST``. The seed comes from the operating system, as
    a server could subtract noise that it can reproduce.
    """
    leaks = case.check().leaks
    if not leaks:
        return case
    shown = [id(case.update[name]) for leak in leaks for name in names_of(leak, case.update)]
    names = [name for name, t in case.update.items() if id(t) in shown]
    averaged = math.sqrt(max(len(leak.rows) for leak in leaks))
    generator = torch.Generator()
    generator.seed()
    for strength in STRENGTHS:
        noisy = _with_noise(case, names, averaged * strength, generator)
        if distance(case.update, noisy.update) > MOST:
            return None
        if not _with_noise(case, names, strength, generator).check().leaks:
            return noisy
    return None


def _with_noise(case: Case, names: Sequence[str], strength: float, generator: torch.Generator) -> Case:
    update = dict(case.update)
    for name in names:
        t = update[name]
        noise = torch.randn(t.shape, generator=generator).to(t)
        update[name] = t + strength * t.double().square().mean().sqrt().to(t) * noise
    return replace(case, update=update)


Remedy = Callable[[Case], Case | None]
REMEDIES: Final[Mapping[str, Remedy]] = {
    "drop rows": drop_rows,
    "clip examples": clip_examples,
    "grow the batch": grow_batch,
    "add copies": add_copies,
    "add noise": add_noise,
}
"""In the order in which they are tried."""


def distance(update: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> float:
    """Norm of the difference, relative to the norm of ``update``; what ``other`` lacks stays as it was."""
    difference = {
        name: other[name].double() - t.double() if name in other else t for name, t in update.items()
    }
    return norm(difference) / max(norm(update), torch.finfo(torch.double).tiny)
