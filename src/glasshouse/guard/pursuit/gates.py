"""What examples pass back to units behind a fixed mixture: a frozen layer, a buffer, a Fourier transform.

A server that knows the mixture undoes it, so that few rows behind it are all rows of a layer before it. The
graph of the loss shows where a unit that switches reads such a mixture; what is passed back there is pursued
like the rows of a tensor.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, final

import torch
from torch import Tensor, nn

from glasshouse.guard.layers.trace import left_as_it_was

GATES: Final = frozenset(
    (
        "Relu", "LeakyRelu", "PreluKernel", "Gelu", "Silu", "Elu", "Sigmoid", "Tanh", "Softplus",
        "Hardtanh", "Hardswish", "Hardsigmoid", "Clamp", "ClampMin", "ClampMax", "Threshold", "Mish",
        "Maximum", "Minimum", "Abs", "Where", "Mul", "LogSigmoid", "Softshrink", "Hardshrink",
        "Amax", "Amin", "Max", "Min", "MaxPool2DWithIndices", "MaxPool3DWithIndices", "Glu", "Celu", "Selu",
        "RreluWithNoise", "Pow", "Exp", "Sqrt", "Log", "Erf", "Sin", "Cos", "Sort", "Topk", "Median",
        "AdaptiveMaxPool2D", "AdaptiveMaxPool3D", "FractionalMaxPool2D", "Kthvalue", "Gather",
    )
)  # fmt: skip
"""Operations after which a unit passes back nothing, or little, for some examples."""
MIXTURES: Final = {"Mm": (0, 1), "Addmm": (1, 2), "Bmm": (0, 1), "Baddbmm": (1, 2), "Convolution": (0, 1)}
"""Operations that mix units, and which of their operands are the matrix and what it is applied to."""
FIXED: Final = frozenset(("FftR2C", "FftC2C", "FftC2R", "Cumsum"))
"""Mixtures without a matrix."""
_ALONG: Final = frozenset(
    (
        "View", "UnsafeView", "ReshapeAlias", "Add", "Sub", "Unsqueeze", "Squeeze", "Permute",
        "Transpose", "T", "Clone", "ToCopy", "Expand", "Split", "Slice", "Select", "UnsafeSplit",
        "SplitWithSizes", "Mul", "Div", "NativeBatchNorm", "Alias", "Real", "Imag", "ViewAsReal",
        "NativeLayerNorm", "NativeGroupNorm", "Stack", "Cat", "Neg", "Sum", "Mean", "AvgPool2D",
        "ConstantPadNd", "Repeat", "Roll", "Flip", "IndexSelect", "Index",
    )
)  # fmt: skip
_REARRANGED: Final = frozenset(("T", "Transpose", "View", "Unsqueeze", "Squeeze", "Permute", "Expand"))
_MOST: Final = 4096  # units of a gate

Node = Any  # torch's nodes have no common type


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Gate:
    """Units behind a fixed mixture.

    Attributes:
        passed: what each example passes back to them, (N, R).
        mixed: names of the trained tensors whose layers the mixture mixes.
    """

    passed: Tensor
    mixed: tuple[str, ...]


def gates_of(model: nn.Module, parts: Sequence[tuple[int, Callable[[nn.Module], Tensor]]]) -> list[Gate]:
    """The gates behind a mixture.

    Args:
        model: in the mode in which it is trained; not modified.
        parts: numbers of examples, and what computes a goal for each of them.
    """
    found: list[list[Gate]] = []
    for count, goals in parts:
        with left_as_it_was(model), torch.enable_grad():
            goal = goals(model).sum()
            if goal.grad_fn is None:
                return []
            passed = _passed_back(goal, {n: p for n, p in model.named_parameters() if p.requires_grad})
        # A gate of which it is unclear what belongs to which example says nothing of any.
        each = ((_per_example(gate.passed, count), gate.mixed) for gate in passed)
        found.append([Gate(passed=t, mixed=mixed) for t, mixed in each if t is not None])
        if not found[-1]:
            return []
    # Parts that went different ways through the network have no gates in common.
    if any(_widths(some) != _widths(found[0]) for some in found):
        return []
    return [
        Gate(passed=torch.cat([g.passed for g in some]), mixed=some[0].mixed)
        for some in zip(*found, strict=True)
    ]


def _widths(gates: Sequence[Gate]) -> list[int]:
    return [gate.passed.shape[1] for gate in gates]


def _passed_back(goal: Tensor, weights: Mapping[str, nn.Parameter]) -> list[Gate]:
    # One mixture may stand before several gates; what all of them pass back meets at its output.
    wanted = dict.fromkeys(
        source for gate in _nodes(goal.grad_fn) if _kind(gate) in GATES for source in _mixed_before(gate)
    )
    caught: dict[int, Tensor] = {}
    handles = []
    for number, (node, place) in enumerate(wanted):

        def keep(t: Tensor | None, key: int) -> None:
            if t is not None:
                caught[key] = (torch.view_as_real(t) if t.is_complex() else t).detach()

        def before(outputs: tuple[Tensor | None, ...], key: int = number) -> None:
            keep(outputs[0], key)

        def after(inputs: tuple[Tensor | None, ...], _: object, key: int = number, at: int = place) -> None:
            keep(inputs[at], key)

        # Only a hook sees what a node passes back: autograd keeps no gradient of what is no leaf.
        handles.append(node.register_prehook(before) if place < 0 else node.register_hook(after))
    if wanted:
        torch.autograd.grad(goal, list(weights.values()), allow_unused=True)
    for handle in handles:
        handle.remove()
    names = {id(p): name for name, p in weights.items()}
    sources = [node if place < 0 else node.next_functions[place][0] for node, place in wanted]
    return [Gate(passed=caught[key], mixed=_trained_before(sources[key], names)) for key in sorted(caught)]


def _trained_before(node: Node, names: Mapping[int, str]) -> tuple[str, ...]:
    """Names of the parameters of layers before a node, back to the next gate."""
    front, known, found = [node], set(), []
    while front:
        one = front.pop()
        if one is None or one in known or _kind(one) in GATES - {"Mul"}:
            continue
        known.add(one)
        if hasattr(one, "variable"):
            found.append(names.get(id(one.variable), ""))
        front += [source for source, _ in one.next_functions]
    return tuple(name for name in names.values() if name in found)


def _mixed_before(gate: Node) -> Iterator[tuple[Node, int]]:
    """Where to see what a gate passes back to mixtures without a trained matrix: a node and its operand.

    Of a mixture by a matrix the place is -1: its output, which has a row for each example. Transforms may
    mix the examples' numbers with complex ones, so that the gate's own operand is taken.
    """
    for place, (source, _) in enumerate(gate.next_functions):
        front, known = [source], set()
        while front:
            one = front.pop()
            if one is None or one in known:
                continue
            known.add(one)
            kind = _kind(one)
            if kind in FIXED:
                yield gate, place
            elif kind in MIXTURES:
                operands = [one.next_functions[at][0] for at in MIXTURES[kind]]
                if not any(_is_trained(operand) for operand in operands):
                    yield one, -1
            elif kind in _ALONG:
                front += [node for node, _ in one.next_functions]


def _is_trained(node: Node) -> bool:
    """Whether an operand is a parameter, at most rearranged."""
    while node is not None and _kind(node) in _REARRANGED:
        node = node.next_functions[0][0]
    return node is not None and node.name().endswith("AccumulateGrad")


def _nodes(root: Node) -> list[Node]:
    order, known, front = [], set(), [root]
    while front:
        one = front.pop()
        if one is None or one in known:
            continue
        known.add(one)
        order.append(one)
        front += [source for source, _ in one.next_functions]
    return order


def _kind(node: Node) -> str:
    return str(node.name()).partition("Backward")[0]


def _per_example(passed: Tensor, count: int) -> Tensor | None:
    """(N, R): positions are summed; None: it is unclear which numbers belong to which example."""
    if passed.ndim > 1 and passed.shape[0] == 1 < count and passed.shape[1] == count:
        passed = passed[0]
    if passed.ndim < 2 or len(passed) % count:
        return None
    if len(passed) != count:  # tokens side by side
        passed = passed.reshape(count, -1, *passed.shape[1:]).sum(1)
    if passed.ndim == 4:
        passed = passed.sum((2, 3))
    elif passed.ndim > 2:
        passed = passed.sum(1)
    rows: Tensor = passed.flatten(1)
    return rows if 1 < rows.shape[1] <= _MOST else None
