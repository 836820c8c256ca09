"""The own network of reproduce/census.toml, for rows of a table."""

import math

from torch import nn


def own(input_shape, classes):
    """Two hidden layers on encoded rows, which need no normalisation."""
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(math.prod(input_shape), 256),
        nn.ReLU(),
        nn.Linear(256, 64),
        nn.ReLU(),
        nn.Linear(64, classes),
    )
