"""Show that no example of a batch influences another, which every proof about single examples needs.

A network whose output for one example depends on its neighbours (statistics of the batch, a layer that takes
the batch for a sequence) or on those before it (a running mean, a state that is kept) has no gradient of a
single example: clipping what it returns bounds nothing. The check runs the network in the mode in which it
is trained and exchanges the other examples of a batch; and, where it draws nothing at random, runs each
example alone. It does so in several sizes, since a layer may mix examples only where two dimensions happen to
agree, and in double precision where a small network can, since a weak influence is one, too.

Shape letters: B examples.
"""

import copy
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from typing import Any, Final

import torch
from torch import Tensor, nn

from glasshouse.errors import Inapplicable, in_a_line
from glasshouse.examples import Batch
from glasshouse.interfaces import losses_of
from glasshouse.interfaces.modes import FAULTS, drawing_layers, set_alone

TOLERANCES: Final = {torch.float64: 1e-9, torch.float32: 1e-4}
"""Largest difference, relative to the largest value, that rounding in another order explains."""
DOUBLE: Final = 200_000
"""Weights of the largest network that is tried in double precision: convolutions are slow in it."""
_MIXES: Final = "use group or layer norm instead of batch statistics, and layers that take the batch first"


def check_independence(
    model: nn.Module, batch: Batch, *, subject: str, sizes: Iterable[int], drawn: Iterable[int] = ()
) -> None:
    """Raise if the loss of an example depends on other examples, beside it or before it, or on their number.

    Args:
        model: in the mode in which it is trained; left as it is.
        batch: at least two different examples.
        subject: what needs the independence, for the error.
        sizes: batch sizes to try; larger ones than ``batch`` are left out.
        drawn: further ones, in which each example is compared with itself alone only.

    Raises:
        Inapplicable: examples influence each other, or the network cannot take a single one; names the first
            layer whose output differs.
    """
    network, batch = _precise(model, batch)
    pair = batch.pick(torch.arange(2))
    _quieten(network, pair, packages=("torch.",))  # its drop-out takes examples one by one
    quiet = copy.deepcopy(network)
    if drawing := _quieten(quiet, pair):
        raise _refused(
            subject,
            f"layer '{drawing[0]}' ({_kind(quiet, drawing[0])}) draws at random in every mode",
            fix="let it draw in training mode only, so that what examples do to each other can be tried",
        )
    _check_memory(copy.deepcopy(network), pair, subject=subject)
    alone: list[Tensor] = []
    whole = {min(size, len(batch)) for size in sizes}
    every = whole | {min(size, len(batch)) for size in drawn}
    for size in sorted(size for size in every if size >= 2):
        together = batch.pick(torch.arange(size))
        try:
            if size in whole:
                _check_exchange(network, together, subject=subject)
            alone += [_losses(quiet, batch.pick(torch.tensor([i]))) for i in range(len(alone), size)]
            losses = _losses(quiet, together)
        except FAULTS as error:
            raise _refused(subject, f"in a batch of {size}, {in_a_line(error)}") from error
        if losses.shape != (size,) or not _alike(losses, torch.cat(alone)):
            last = torch.tensor([size - 1])  # the one that a sequence over the batch changes most
            where = _first_difference(quiet, together, last, together.pick(last), torch.tensor([0]))
            raise _refused(subject, f"in a batch of {size}, {where} differs")


def _quieten(model: nn.Module, batch: Batch, *, packages: tuple[str, ...] = ("",)) -> tuple[str, ...]:
    """Put layers that draw at random into evaluation mode, in place; names of those that draw even then.

    Args:
        model: changed in place.
        batch: examples on which it is tried.
        packages: where the classes of these layers are defined, as beginnings of names.
    """
    while True:
        drawing = drawing_layers(model, batch.inputs)
        layers = {name: model.get_submodule(name) for name in drawing}
        ours = [n for n, layer in layers.items() if type(layer).__module__.startswith(packages)]
        louder = [name for name in ours if layers[name].training]
        if not louder:
            return drawing
        for name in louder:
            set_alone(model, name, training=False)


def same_in_training(model: nn.Module, names: Sequence[str], batch: Batch) -> list[str]:
    """Those of the named layers that draw nothing and compute the same in training mode; ``model`` is kept.

    Args:
        model: with these layers in evaluation mode.
        names: of the layers.
        batch: examples on which they are tried.
    """
    network, batch = _precise(model, batch)
    before = _seeded(network, batch)

    def unlike() -> bool:
        return bool(drawing_layers(network, batch.inputs)) or not _alike(before, _seeded(network, batch))

    for name in names:
        network.get_submodule(name).training = True
    if not unlike():  # as of nearly all networks: one pass for all layers
        return list(names)
    for name in names:
        network.get_submodule(name).training = False
    same = []
    for name in names:
        layer = network.get_submodule(name)
        layer.training = True
        if unlike():
            layer.training = False
        else:
            same.append(name)
    return same


def _precise(model: nn.Module, batch: Batch) -> tuple[nn.Module, Batch]:
    """Copies in double precision; in the network's own where it is large, or its code allows no other."""
    if sum(p.numel() for p in model.parameters()) > DOUBLE:
        return copy.deepcopy(model), batch
    double = Batch(inputs=_doubled(batch.inputs), labels=batch.labels)
    try:
        network = copy.deepcopy(model).double()
        with torch.random.fork_rng(devices=[]):
            _losses(network, double.pick(torch.tensor([0])))
    except FAULTS:
        return copy.deepcopy(model), batch
    return copy.deepcopy(model).double(), double  # without what the first pass left behind


def _doubled(numbers: Tensor) -> Tensor:
    """The same in double precision; whole numbers, such as places in a vocabulary, stay."""
    return numbers.double() if numbers.is_floating_point() else numbers


def _losses(model: nn.Module, batch: Batch) -> Tensor:
    with torch.no_grad():
        return losses_of(model, batch)


def _check_memory(network: nn.Module, batch: Batch, *, subject: str) -> None:
    """Raise if a second pass of the same examples has other losses than the first."""
    try:
        first, second = _seeded(network, batch), _seeded(network, batch)
    except FAULTS:  # said by whoever tries the sizes
        return
    if not _alike(first, second):
        rows = torch.arange(len(batch))
        where = _first_difference(network, batch, rows, batch, rows)
        raise _refused(
            subject,
            f"{where} changes with every pass",
            fix="name it in federation.training.frozen, or use federation.training.mode = evaluation",
        )


def _check_exchange(network: nn.Module, batch: Batch, *, subject: str) -> None:
    """Raise if the losses of one half of the examples change with the other half.

    What is drawn at random is drawn equally in both passes.
    """
    size = len(batch)
    halves = torch.split(torch.arange(size), (size + 1) // 2)
    first = _seeded(network, batch)
    for kept in halves:
        moved = torch.ones(size, dtype=torch.bool)
        moved[kept] = False
        rows = torch.arange(size)
        rows[moved] = kept[torch.arange(size - len(kept)) % len(kept)]
        exchanged = batch.pick(rows)
        if first.shape != (size,) or not _alike(first[kept], _seeded(network, exchanged)[kept]):
            where = _first_difference(network, batch, kept, exchanged, kept)
            raise _refused(subject, f"in a batch of {size}, {where} differs")


def _seeded(model: nn.Module, batch: Batch) -> Tensor:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return _losses(model, batch)


def _alike(left: Tensor, right: Tensor) -> bool:
    """Equal up to rounding, relative to the largest value."""
    if left.shape != right.shape:
        return False
    scale = max(float(left.abs().max()), float(right.abs().max()), 1e-12)
    largest = float((left - right).abs().max())
    return largest <= TOLERANCES.get(left.dtype, TOLERANCES[torch.float32]) * scale


def _first_difference(model: nn.Module, batch: Batch, rows: Tensor, other: Batch, same: Tensor) -> str:
    """The first layer, in the order of the computation, that maps the same examples to something else.

    Args:
        model: what is run on both.
        batch: examples.
        rows: those to compare.
        other: examples beside which they stand otherwise.
        same: their rows in ``other``.
    """
    left, right = _outputs(model, batch), _outputs(model, other)
    for name, output in left.items():
        single = right.get(name)
        unlike = single is None or output.ndim == 0 or len(output) != len(batch)
        if unlike or single is None or len(single) != len(other) or not _alike(output[rows], single[same]):
            return f"layer '{name}' ({_kind(model, name)})"
    return "a computation outside its layers"


def _kind(model: nn.Module, name: str) -> str:
    return type(model.get_submodule(name)).__name__


def _outputs(model: nn.Module, batch: Batch) -> dict[str, Tensor]:
    """The first tensor that each layer returns, by name; a layer's own parts come before it."""
    outputs: dict[str, Tensor] = {}

    def keep(name: str) -> Callable[..., None]:
        def hook(_module: nn.Module, _inputs: Any, output: Any) -> None:
            first = output[0] if isinstance(output, tuple) else output
            if isinstance(first, Tensor):
                outputs.setdefault(name, first.detach())

        return hook

    with ExitStack() as hooks:
        for name, layer in model.named_modules():
            if name:
                hooks.enter_context(layer.register_forward_hook(keep(name)))
        _seeded(model, batch)
    return outputs


def _refused(subject: str, got: str, *, fix: str = _MIXES) -> Inapplicable:
    return Inapplicable(
        subject,
        needs="a network in which no example influences another: alone, each has the same loss",
        got=got,
        fix=fix,
    )
