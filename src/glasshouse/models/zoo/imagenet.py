"""ImageNet-scale models of torchvision, split into features and head. Needs the ``vision`` extra.

Weights are not downloaded: give a file (``model.weights``) or pre-train. Files published by torchvision can
be used directly: their names are mapped to ours, and their classifier is left out (under protocol transfer
the agreed head is then initialised at random). Pixels are normalised by the mean and standard deviation of
all ImageNet channels together, since the zoo's normalisation is one pair of numbers.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from glasshouse.errors import BadValue, NotInstalled
from glasshouse.models.base import Shape, SplitModel, check_shape, published, with_head
from glasshouse.registry import Card

try:
    from torchvision import models as _models

    _MISSING = ""
except (ImportError, RuntimeError) as error:  # RuntimeError: a wheel built for another build of torch
    _MISSING = f"{type(error).__name__}: {error}"

MEAN, STD = 0.449, 0.226
_SMALLEST = 32
_OLDER = {".mlp.linear_1.": ".mlp.0.", ".mlp.linear_2.": ".mlp.3."}
"""Old names in the vision-transformer files that torchvision still publishes → current names."""


def from_torchvision(
    tensors: Mapping[str, Tensor], *, classifier: str, first: str = "features."
) -> dict[str, Tensor]:
    """Rename a torchvision state_dict to our names; one that already has them is unchanged.

    Older files lack batch norm's counter of batches; it is then 0, as in torch.

    Args:
        tensors: tensors by name.
        classifier: prefix of the classifier's names; it is left out.
        first: prefix of our names of the features.
    """
    if any(name.startswith((first, "head.")) for name in tensors):
        return dict(tensors)
    backbone = {name: t for name, t in tensors.items() if not name.startswith(classifier)}
    for old, new in _OLDER.items():
        backbone = {name.replace(old, new): t for name, t in backbone.items()}
    layers = [name.removesuffix("running_mean") for name in backbone if name.endswith(".running_mean")]
    counters = {f"{layer}num_batches_tracked": torch.tensor(0) for layer in layers}
    return {f"features.{name}": t for name, t in {**counters, **backbone}.items()}


def _split_model(
    name: str, input_shape: Shape, hidden: int, classes: int, *, features: int, **more: Any
) -> SplitModel:
    """The torchvision model with our normalisation before it and our head instead of its classifier."""
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
    return with_head(body, features, classes, mean=MEAN, std=STD, hidden=hidden, model=name)


@published(partial(from_torchvision, classifier="fc."))
@Card(
    summary="torchvision's ResNet-50: 2,048 features",
    source="He et al. 2016, arXiv:1512.03385",
    extra="vision",
)
def resnet50(input_shape: Shape, classes: int, *, hidden: int = 512) -> SplitModel:
    """Features as in torchvision; a head with ``hidden`` and K units (``hidden`` = 0: one layer)."""
    return _split_model("resnet50", input_shape, hidden, classes, features=2048)


@published(partial(from_torchvision, classifier="classifier.", first="features.features."))
@Card(
    summary="torchvision's VGG-11 with batch norm: 25,088 features",
    source="Simonyan & Zisserman 2015, arXiv:1409.1556",
    extra="vision",
)
def vgg11_bn(input_shape: Shape, classes: int, *, hidden: int = 512) -> SplitModel:
    """Convolutions and the 7 × 7 pooling as in torchvision; a head with ``hidden`` and K units."""
    return _split_model("vgg11_bn", input_shape, hidden, classes, features=25088)


@published(partial(from_torchvision, classifier="heads."))
@Card(
    summary="torchvision's ViT-B/32: 768 features of any sign",
    source="Dosovitskiy et al. 2021, arXiv:2010.11929",
    extra="vision",
)
def vit_b_32(input_shape: Shape, classes: int, *, hidden: int = 512) -> SplitModel:
    """The class token as in torchvision, for images of this side; a head with ``hidden`` and K units."""
    if input_shape[1] != input_shape[2] or input_shape[1] % 32:
        raise BadValue(
            "model 'vit_b_32'",
            needs="square images whose side is a multiple of 32",
            got=f"{input_shape[1]} × {input_shape[2]}",
            fix="set data.resize = 224",
        )
    return _split_model("vit_b_32", input_shape, hidden, classes, features=768, image_size=input_shape[1])
