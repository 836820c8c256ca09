"""One convolution, one pooling, one linear layer: the model attacked in the PLI paper."""

from torch import nn

from glasshouse.limits import Count
from glasshouse.models.base import Shape, SplitModel, chain, check_shape, flat_size, with_head
from glasshouse.registry import Card


@Card(
    summary="one 3x3 convolution, 3x3 max-pooling, one linear layer",
    source="Takahashi et al. 2023, Breaching FedMD, CVPR, Code 1",
)
def shallow_cnn(
    input_shape: Shape,
    classes: int,
    *,
    width: Count = 32,
    mean: float = 0.5,
    std: float = 0.5,
) -> SplitModel:
    """Code 1 of the paper: no padding, one ReLU; 64 × 64 images give 12,800 features.

    Pooling is before the ReLU instead of after it, which computes the same function.

    Args:
        input_shape: (C, H, W).
        classes: K.
        width: channels of the convolution; 32 in the paper.
        mean: mean of the fixed pixel normalisation; the defaults give the paper's [-1, 1].
        std: standard deviation of the fixed pixel normalisation.
    """
    check_shape(input_shape, classes, model="shallow_cnn", width=width)
    features = chain(
        conv=nn.Conv2d(input_shape[0], width, 3), pool=nn.MaxPool2d(3), relu=nn.ReLU(), flatten=nn.Flatten()
    )
    return with_head(features, flat_size(features, input_shape), classes, mean=mean, std=std)
