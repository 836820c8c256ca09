"""The network that the sites train, and the module's names around it."""

from torch import Tensor, nn


class Net(nn.Module):
    """Two linear layers for images of 8 x 8 pixels in [0, 1]."""

    def __init__(self) -> None:
        super().__init__()
        self.fc1 = nn.Linear(64, 32)
        self.fc2 = nn.Linear(32, 10)

    def forward(self, images: Tensor) -> Tensor:
        """Logits, (B, 10)."""
        return self.fc2(self.fc1(images.flatten(1)).sigmoid())


class Wrapped(nn.Module):
    """The same with the names of Lightning's module (``net.fc1.weight``)."""

    def __init__(self) -> None:
        super().__init__()
        self.net = Net()

    def forward(self, images: Tensor) -> Tensor:
        """Logits, (B, 10)."""
        return self.net(images)
