"""The network, the data of a client, and how it trains."""

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

EXAMPLES = 32


class Net(nn.Module):
    """Two convolutions and two linear layers, for images normalised to [-1, 1]."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 6, 3, padding=1)
        self.conv2 = nn.Conv2d(6, 12, 3, padding=1, stride=2)
        self.fc1 = nn.Linear(192, 48)
        self.fc2 = nn.Linear(48, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Images (B, 1, 8, 8) → logits (B, 10)."""
        x = torch.sigmoid(self.conv2(torch.sigmoid(self.conv1(x))))
        return self.fc2(torch.sigmoid(self.fc1(x.flatten(1))))


def load_data(partition: int, batch_size: int) -> DataLoader:
    """The images of one client, normalised, shuffled in every epoch."""
    digits = load_digits()
    rows = [row for row in range(len(digits.images)) if row % 4 < 3]  # every fourth is left for the audit
    rows = rows[partition * EXAMPLES : (partition + 1) * EXAMPLES]
    pixels = torch.tensor(digits.images[rows], dtype=torch.float32)[:, None] / 16
    data = TensorDataset((pixels - 0.5) / 0.5, torch.tensor(digits.target[rows]))
    return DataLoader(data, batch_size=batch_size, shuffle=True)


def train(net: nn.Module, batches: DataLoader, epochs: int, learning_rate: float) -> float:
    """Plain SGD; returns the mean loss."""
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(net.parameters(), lr=learning_rate)
    net.train()
    total = 0.0
    for _ in range(epochs):
        for images, labels in batches:
            optimizer.zero_grad()
            loss = criterion(net(images), labels)
            loss.backward()
            optimizer.step()
            total += loss.item()
    return total / (epochs * len(batches))
