"""The common structure of the models: fixed normalisation, then features, then a head.

Shape letters: B examples, C channels, H and W pixels, D features, K classes.
"""

import math
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar, final

import torch
from torch import Tensor, nn

from glasshouse.errors import BadValue

SMALLEST_SIDE = 8
"""Smallest image side in pixels that every model of the zoo accepts (the digits are 8 × 8)."""


Shape = tuple[int, int, int]
"""(C, H, W)."""
F = TypeVar("F", bound=Callable[..., Any])


Renaming = Callable[[Mapping[str, Tensor]], dict[str, Tensor]]
RENAMINGS: dict[Callable[..., Any], Renaming] = {}
"""Factory of a model with published weights → function that renames the tensors of a published file."""


def published(rename: Renaming) -> Callable[[F], F]:
    """Register a factory in :data:`RENAMINGS`.

    Args:
        rename: maps tensors to the names of the factory's model; names that already match are kept, tensors
            that the model does not have are left out.
    """

    def attach(factory: F) -> F:
        RENAMINGS[factory] = rename
        return factory

    return attach


@final
class Normalize(nn.Module):
    """``(x - mean) / std``: normalise pixels in [0, 1].

    ``mean`` and ``std`` are one number for all channels, or one per channel. They are public constants of the
    architecture, not parameters, and not in the ``state_dict``: they are never broadcast or uploaded.
    """

    mean: Tensor
    std: Tensor

    def __init__(self, *, mean: float | Sequence[float], std: float | Sequence[float]) -> None:
        super().__init__()
        if not (all(map(math.isfinite, _numbers(mean))) and all(0 < s < math.inf for s in _numbers(std))):
            raise BadValue(
                "normalisation of a model",
                needs="finite numbers, std > 0",
                got=f"mean = {mean}, std = {std}",
                fix="use mean 0 and std 1 for no scaling",
            )
        self.register_buffer("mean", _per_channel(mean), persistent=False)
        self.register_buffer("std", _per_channel(std), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """Pixels (B, C, H, W) in [0, 1] → the same shape, centred and scaled."""
        return (x - self.mean) / self.std


def _numbers(value: float | Sequence[float]) -> tuple[float, ...]:
    return tuple(map(float, value)) if _is_several(value) else (float(value),)  # type: ignore[arg-type]


def _is_several(value: object) -> bool:
    """Whether there is a number per channel, in whatever holds them."""
    return isinstance(value, Sequence) or getattr(value, "ndim", 0) > 0


def _per_channel(value: float | Sequence[float]) -> Tensor:
    """A scalar, or (C, 1, 1)."""
    numbers = torch.tensor(_numbers(value))
    return numbers.view(-1, 1, 1) if _is_several(value) else numbers[0]


@final
class SplitModel(nn.Module):
    """``head(features(normalize(x)))``.

    Args:
        normalize: fixed constants; see :class:`Normalize`.
        features: (B, C, H, W) → (B, D), flat.
        head: (B, D) → logits (B, K). In the zoo it is one linear layer (``head.weight`` and ``head.bias``)
            or, if requested, two: ``head.hidden`` and ``head.out``.
    """

    def __init__(self, *, normalize: Normalize, features: nn.Module, head: nn.Module) -> None:
        super().__init__()
        self.normalize = normalize
        self.features = features
        self.head = head

    def forward(self, x: Tensor) -> Tensor:
        """Pixels (B, C, H, W) in [0, 1] → logits (B, K)."""
        logits: Tensor = self.head(self.representation(x))
        return logits

    def representation(self, x: Tensor) -> Tensor:
        """The flat vector (B, D) that enters ``head``."""
        vector: Tensor = self.features(self.normalize(x))
        return vector


def check_shape(input_shape: Shape, classes: int, *, model: str, **widths: int) -> None:
    """Refuse image shapes and class counts that no model of the zoo supports, and invalid layer widths.

    Raises:
        BadValue: a side below ``SMALLEST_SIDE`` pixels, no channel, fewer than 2 classes, or as
            :func:`check_width`.
    """
    if len(input_shape) != 3:
        raise BadValue(
            f"model '{model}'",
            needs="pictures (C, H, W)",
            got=f"examples of shape {tuple(input_shape)}",
            fix="choose a model that reads these data: mlp, or your own",
        )
    channels, height, width = input_shape
    if channels < 1 or min(height, width) < SMALLEST_SIDE or classes < 2:
        raise BadValue(
            f"model '{model}'",
            needs=f"images of at least 1 × {SMALLEST_SIDE} × {SMALLEST_SIDE} (C × H × W) and 2 classes",
            got=f"{channels} × {height} × {width} and {classes} classes",
            fix="resize the images (data.resize), or use data with more classes",
        )
    for key, width in widths.items():
        check_width(width, model=model, key=key)


def check_width(width: int, *, model: str, key: str = "width") -> None:
    """Refuse an invalid layer width; ``key`` is the name of the argument.

    Raises:
        BadValue: ``width`` is not an integer >= 1.
    """
    if type(width) is not int or width < 1:
        raise BadValue(
            f"model '{model}'",
            needs=f"{key}: a whole number, at least 1",
            got=repr(width),
            fix=f"set model.{key}",
        )


def head_of(inward: int, classes: int, *, hidden: int, model: str) -> nn.Module:
    """One linear layer, or (``hidden`` > 0) two with a ReLU in between: ``hidden`` and ``out``.

    Raises:
        BadValue: ``hidden`` is not an integer >= 0.
    """
    if not hidden:
        return nn.Linear(inward, classes)
    check_width(hidden, model=model, key="hidden")
    return chain(hidden=nn.Linear(inward, hidden), relu=nn.ReLU(), out=nn.Linear(hidden, classes))


def chain(**layers: nn.Module) -> nn.Sequential:
    """The layers one after the other, by name."""
    return nn.Sequential(OrderedDict(layers))


def normed(inward: int, outward: int, kernel: int, **options: Any) -> list[nn.Module]:
    """A square convolution without bias, and its batch norm."""
    return [nn.Conv2d(inward, outward, kernel, bias=False, **options), nn.BatchNorm2d(outward)]


def with_head(
    features: nn.Module,
    size: int,
    classes: int,
    *,
    mean: float = 0.5,
    std: float = 0.5,
    hidden: int = 0,
    model: str = "",
) -> SplitModel:
    """A model of the zoo: normalisation, ``features`` with ``size`` outputs, and :func:`head_of`."""
    head = head_of(size, classes, hidden=hidden, model=model)
    return SplitModel(normalize=Normalize(mean=mean, std=std), features=features, head=head)


def flat_size(features: nn.Module, input_shape: tuple[int, ...]) -> int:
    """D, the number of features per image, measured with a blank image."""
    with evaluated(features):
        return int(features(torch.zeros(1, *input_shape)).shape[1])


@contextmanager
def evaluated(model: nn.Module) -> Iterator[None]:
    """``model`` in ``eval()`` mode and without gradients; its mode is restored."""
    training = model.training
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        model.train(training)
