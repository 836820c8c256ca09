"""The network, the data of a client, and how it trains."""

import torch
from flwr.app import Context
from sklearn.datasets import load_digits
from torch import nn

EXAMPLES = 128
BATCH = 32
RATE = 0.05


def network() -> nn.Module:
    """A convolution and two linear layers, for pixels in [0, 1]."""
    return nn.Sequential(
        nn.Conv2d(1, 6, 3, padding=1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(384, 32),
        nn.ReLU(),
        nn.Linear(32, 10),
    )


def load_data(context: Context) -> tuple[torch.Tensor, torch.Tensor]:
    """Pixels (B, 1, 8, 8) and labels (B,) of one client."""
    digits = load_digits()
    first = int(context.node_config["partition-id"]) * EXAMPLES
    rows = slice(first, first + EXAMPLES)
    pixels = torch.tensor(digits.images[rows], dtype=torch.float32)[:, None] / 16
    return pixels, torch.tensor(digits.target[rows])


def train(net: nn.Module, images: torch.Tensor, labels: torch.Tensor) -> float:
    """One pass of plain SGD; returns the last loss."""
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(net.parameters(), lr=RATE)
    net.train()
    loss = torch.zeros(())
    for x, y in zip(images.split(BATCH), labels.split(BATCH), strict=True):
        optimizer.zero_grad()
        loss = criterion(net(x), y)
        loss.backward()
        optimizer.step()
    return float(loss.detach())
