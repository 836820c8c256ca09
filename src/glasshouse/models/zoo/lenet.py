"""Two LeNets: the one attacked in the DLG paper, and LeNet-5 with ReLUs.

Weights are drawn inside ``build``'s ``fork_rng``.
"""

from torch import nn

from glasshouse.models.base import Shape, SplitModel, chain, check_shape, flat_size, with_head
from glasshouse.registry import Card


@Card(
    summary="LeNet with sigmoids as in DLG: three 5x5 convolutions, weights uniform(-0.5, 0.5)",
    source="Zhu et al. 2019, arXiv:1906.08935",
)
def lenet_sigmoid(input_shape: Shape, classes: int, *, mean: float = 0.0, std: float = 1.0) -> SplitModel:
    """DLG's network: strides 2, 2, 1; twice differentiable; every weight and bias uniform in ±0.5.

    The initialisation matters: with PyTorch's default, DLG rarely converges. As in DLG, images are not
    normalised.
    """
    check_shape(input_shape, classes, model="lenet_sigmoid")
    features = chain(
        conv1=nn.Conv2d(input_shape[0], 12, 5, padding=2, stride=2),
        act1=nn.Sigmoid(),
        conv2=nn.Conv2d(12, 12, 5, padding=2, stride=2),
        act2=nn.Sigmoid(),
        conv3=nn.Conv2d(12, 12, 5, padding=2),
        act3=nn.Sigmoid(),
        flatten=nn.Flatten(),
    )
    model = with_head(features, flat_size(features, input_shape), classes, mean=mean, std=std)
    for parameter in model.parameters():
        nn.init.uniform_(parameter, -0.5, 0.5)
    return model


@Card(
    summary="LeNet-5 with ReLU and max-pooling: 6 and 16 channels, then 120 and 84 units",
    source="LeCun et al. 1998, Proc. IEEE 86(11)",
)
def lenet5(input_shape: Shape, classes: int, *, mean: float = 0.5, std: float = 0.5) -> SplitModel:
    """LeNet-5 as used today: ReLU instead of tanh, max- instead of average pooling, all channels connected.

    Images smaller than 32 × 32 (such as MNIST's 28 × 28) are padded by 2 before the first convolution, and
    feature maps smaller than 10 × 10 before the second. Two of the three linear layers belong to the
    features, the last one is the head.
    """
    check_shape(input_shape, classes, model="lenet5")
    side = min(input_shape[1:])
    first = 2 if side < 32 else 0
    second = 2 if (side - 4 + 2 * first) // 2 < 10 else 0
    convolutions = chain(
        conv1=nn.Conv2d(input_shape[0], 6, 5, padding=first),
        act1=nn.ReLU(),
        pool1=nn.MaxPool2d(2),
        conv2=nn.Conv2d(6, 16, 5, padding=second),
        act2=nn.ReLU(),
        pool2=nn.MaxPool2d(2),
        flatten=nn.Flatten(),
    )
    features = chain(
        **dict(convolutions.named_children()),
        fc1=nn.Linear(flat_size(convolutions, input_shape), 120),
        act3=nn.ReLU(),
        fc2=nn.Linear(120, 84),
        act4=nn.ReLU(),
    )
    return with_head(features, 84, classes, mean=mean, std=std)
