"""The network, the data of a client, and how it trains."""

import torch
from sklearn.datasets import load_digits
from torch import nn

from glasshouse.models.adapt import adapt

EXAMPLES = 32
BATCH = 16
RATE = 0.05


def network() -> nn.Module:
    """Two linear layers, for pixels in [0, 1]."""
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))


def audited(input_shape: tuple[int, int, int], classes: int) -> nn.Module:
    """The network as an audit builds it."""
    return adapt(network())


def load_data(partition: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Pixels (B, 1, 8, 8) and labels (B,) of one client; every fourth image is left for the audit."""
    digits = load_digits()
    rows = [row for row in range(len(digits.images)) if row % 4 < 3]
    rows = rows[partition * EXAMPLES : (partition + 1) * EXAMPLES]
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
