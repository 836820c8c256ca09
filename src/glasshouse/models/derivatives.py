"""Whether a network can be differentiated, once as clients do and twice as attacks do, and can be trained."""

from collections.abc import Sequence
from typing import Final

import torch
from torch import Tensor

from glasshouse.cache import once
from glasshouse.errors import GlasshouseError, in_a_line
from glasshouse.interfaces.modes import FAULTS, answer_of, set_mode
from glasshouse.models.adapt import check_modes
from glasshouse.models.build import build
from glasshouse.models.handed_over import REAL
from glasshouse.settings import Training
from glasshouse.wire import Architecture

Fault = tuple[str, str, str]
"""A problem with a network: needs, got, hint."""


_ORDINARY: Final = "replace the layer by one of torch's ordinary ones"
_REMEMBERS: Final[Fault] = (
    "a network that keeps nothing from pass to pass but in its buffers, which a server sends",
    "another answer to the same examples in a second pass, with the buffers set back",
    "self.register_buffer(name, tensor) for what it keeps, or begin each pass anew",
)
_CUT: Final[Fault] = (
    "a gradient that can be differentiated by the example, as this attack does",
    "no way from the example to the trained parameters: torch.no_grad, detach or a rounding lies between",
    "freeze by requires_grad = False instead, or choose an attack that matches no gradients",
)


def derivative_fault(architecture: Architecture, trained: str = "") -> Fault | None:
    """The problem with the gradient of a network's loss for one example; None: none. Cached.

    Args:
        architecture: of the network.
        trained: prefix of the names of the parameters that clients train. Of these, frozen ones
            (``requires_grad = False``) are known and do not travel.
    """
    key = ["fault of derivatives", repr(architecture), trained]
    return once(key, lambda: _find_fault(architecture, trained, twice=False))


def second_derivative_fault(architecture: Architecture) -> Fault | None:
    """The problem with differentiating that gradient by the example; None: none. Cached."""
    key = ["fault of second derivatives", repr(architecture)]
    return once(key, lambda: _find_fault(architecture, "", twice=True))


def pass_fault(architecture: Architecture, training: Training) -> Fault | None:
    """The problem with passes in the mode in which clients train; None: there is none. Cached."""
    key = ["fault of passes", repr(architecture), repr(training)]
    return once(key, lambda: _find_pass_fault(architecture, training))


def _find_pass_fault(architecture: Architecture, training: Training) -> Fault | None:
    model, inputs = build(architecture), architecture.inputs.probes(4, torch.Generator().manual_seed(0))
    set_mode(model, training, dropout=True)
    try:
        check_modes(model, inputs)
        outputs, again = (answer_of(model, inputs, seed=0) for _ in range(2))
    except GlasshouseError as error:
        return error.needs, error.got, error.fix
    except FAULTS as error:
        fix = "correct what it does there, or state the other mode: training.mode"
        return (
            f"a pass over {len(inputs)} {architecture.inputs.nouns} in mode {training.mode or 'evaluation'}",
            in_a_line(error),
            fix,
        )
    if not architecture.task.accepts(tuple(outputs.shape[1:])):
        asked = f"outputs for task '{architecture.task.name}' in training mode, as in evaluation"
        return asked, f"{tuple(outputs.shape)} for {len(inputs)}", "return the same in both modes"
    if not torch.equal(outputs, again):
        return _REMEMBERS
    return None


def _find_fault(architecture: Architecture, trained: str, *, twice: bool) -> Fault | None:
    model, inputs, task = build(architecture).eval(), architecture.inputs, architecture.task
    parameters = [p for name, p in model.named_parameters() if name.startswith(trained) and p.requires_grad]
    if not parameters:
        fix = "leave what clients train with requires_grad = True"
        return "parameters that can be trained", "requires_grad = False for all of them", fix
    example = inputs.probes(4, torch.Generator().manual_seed(0))[:1]
    if complexes := [name for name, p in model.named_parameters() if p.is_complex()]:
        return REAL[0], f"complex ones: {', '.join(complexes[:3])}", REAL[1]
    # Matching differentiates the gradient again, by the pixels; what is not continuous has no such slope.
    example = example.requires_grad_() if inputs.continuous and twice else example
    try:
        outputs = model(example)
        if not outputs.isfinite().all():
            low, high = inputs.range
            return "finite outputs", "NaN or infinity for a valid example", f"numbers are in [{low}, {high}]"
        loss = task.loss(outputs, task.blank(1, outputs.shape[1:]), example)
        gradients = torch.autograd.grad(loss, parameters, create_graph=twice, allow_unused=True)
        if all(g is None for g in gradients):
            return "a loss that depends on a parameter", "it depends on none", "use the layers in forward"
        if twice:
            _differentiate_again(gradients)
            if inputs.continuous and example.grad is None:
                return _CUT
    except FAULTS as error:
        times = "twice, as this attack does" if twice else "once, as clients do"
        compiled = "torch.compile" in str(error)
        fix = "hand over the network from before torch.compile" if compiled else _ORDINARY
        return f"a network that can be differentiated {times}", in_a_line(error), fix
    return None


def _differentiate_again(gradients: Sequence[Tensor | None]) -> None:
    """Differentiate the squared length of a gradient by everything that it depends on.

    For all leaves: by the example alone, a path that breaks off would go unnoticed.

    Raises:
        RuntimeError: an operation has no second derivative.
    """
    size = torch.stack([g.square().sum() for g in gradients if g is not None]).sum()
    if size.requires_grad:  # not where the gradient does not depend on anything, as of a linear loss
        torch.autograd.backward(size)
