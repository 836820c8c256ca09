"""ImageNet-scale models of torchvision, split into features and head. Needs the ``vision`` extra.

Weights are not fetched: give a file (``model.weights``) or pre-train. Pixels are normalised by the mean and
deviation of all ImageNet channels together, since the zoo's normalisation is one pair of numbers.
"""

from collections.abc import Callable
from typing import Any

from torch import nn

from glasshouse.errors import BadValue, NotInstalled
from glasshouse.models.base import Normalize, SplitModel, check_shape, head_of
from glasshouse.registry import Card, carded

try:
    from torchvision import models as _models

    _MISSING = ""
except (ImportError, RuntimeError) as error:  # RuntimeError: a wheel built for another build of torch
    _MISSING = f"{type(error).__name__}: {error}"

MEAN, STD = 0.449, 0.226
_SMALLEST = 32


def _made(
    name: str, input_shape: tuple[int, int, int], hidden: int, classes: int, *, features: int, **more: Any
) -> SplitModel:
    """The torchvision model without its classifier, behind our normalisation and before our head."""
    if _MISSING:
        raise NotInstalled(
            f"model '{name}'",
            needs="torchvision, built for the installed torch",
            got=_MISSING,
            fix="pip install 'glasshouse[vision]' from the same index as torch",
        )
    check_shape(input_shape, classes, model=name)
    if input_shape[0] != 3 or min(input_shape[1:]) < _SMALLEST:
        raise BadValue(
            f"model '{name}'",
            needs=f"colour images of at least {_SMALLEST} × {_SMALLEST} pixels",
            got=" × ".join(map(str, input_shape)),
            fix="set data.channels = 3 and data.resize",
        )
    factory: Callable[..., nn.Module] = getattr(_models, name)
    body = factory(weights=None, **more)
    for attribute in ("fc", "classifier", "heads"):
        if hasattr(body, attribute):
            setattr(body, attribute, nn.Identity())
    return SplitModel(
        normalize=Normalize(mean=MEAN, std=STD),
        features=body,
        head=head_of(features, classes, hidden=hidden, model=name),
    )


@carded(
    Card(
        summary="torchvision's ResNet-50: 2,048 features",
        source="He et al. 2016, arXiv:1512.03385",
        extra="vision",
    )
)
def resnet50(input_shape: tuple[int, int, int], classes: int, *, hidden: int = 512) -> SplitModel:
    """Features as in torchvision; a head of ``hidden`` and K units (``hidden`` = 0: one layer)."""
    return _made("resnet50", input_shape, hidden, classes, features=2048)


@carded(
    Card(
        summary="torchvision's VGG-11 with batch norm: 25,088 features",
        source="Simonyan & Zisserman 2015, arXiv:1409.1556",
        extra="vision",
    )
)
def vgg11_bn(input_shape: tuple[int, int, int], classes: int, *, hidden: int = 512) -> SplitModel:
    """Convolutions and the 7 × 7 pooling as in torchvision; ``hidden`` and K units for its classifier."""
    return _made("vgg11_bn", input_shape, hidden, classes, features=25088)


@carded(
    Card(
        summary="torchvision's ViT-B/32: 768 features of any sign",
        source="Dosovitskiy et al. 2021, arXiv:2010.11929",
        extra="vision",
    )
)
def vit_b_32(input_shape: tuple[int, int, int], classes: int, *, hidden: int = 512) -> SplitModel:
    """The class token as in torchvision, for images of this side; a head of ``hidden`` and K units."""
    if input_shape[1] != input_shape[2] or input_shape[1] % 32:
        raise BadValue(
            "model 'vit_b_32'",
            needs="square images whose side is a multiple of 32",
            got=f"{input_shape[1]} × {input_shape[2]}",
            fix="set data.resize = 224",
        )
    return _made("vit_b_32", input_shape, hidden, classes, features=768, image_size=input_shape[1])
