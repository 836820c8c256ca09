"""The MNIST network of the PROLIN paper; its CIFAR-10 network is ``lenet5`` on 32 × 32 images."""

from torch import nn

from glasshouse.models.base import Shape, SplitModel, chain, check_shape, flat_size, with_head
from glasshouse.registry import Card


@Card(
    summary="LeNet of PyTorch's MNIST example: 10 and 20 channels, dropout, 50 units (21,840 numbers)",
    source="Kerkouche et al. 2023, arXiv:2303.03908, section 6.1",
)
def lenet_dropout(
    input_shape: Shape, classes: int, *, mean: float = 0.1307, std: float = 0.3081
) -> SplitModel:
    """Two convolutions with max-pooling, channel dropout after the second, unit dropout before the head.

    Dropout is active in training mode only, which a federation enables with ``options.dropout = true``.
    Images smaller than 16 × 16 are padded by 2 before each convolution; larger ones are not.
    """
    check_shape(input_shape, classes, model="lenet_dropout")
    pad = 2 if min(input_shape[1:]) < 16 else 0
    convolutions = chain(
        conv1=nn.Conv2d(input_shape[0], 10, 5, padding=pad),
        pool1=nn.MaxPool2d(2),
        act1=nn.ReLU(),
        conv2=nn.Conv2d(10, 20, 5, padding=pad),
        drop2=nn.Dropout2d(0.5),
        pool2=nn.MaxPool2d(2),
        act2=nn.ReLU(),
        flatten=nn.Flatten(),
    )
    features = chain(
        **dict(convolutions.named_children()),
        fc1=nn.Linear(flat_size(convolutions, input_shape), 50),
        act3=nn.ReLU(),
        drop3=nn.Dropout(0.5),
    )
    return with_head(features, 50, classes, mean=mean, std=std)
