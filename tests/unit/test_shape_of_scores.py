"""A metric that returns another number of scores is refused by its name, with what it should return."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest
import torch

from glasshouse.audit.scoring.table import each_of
from glasshouse.errors import BadValue
from glasshouse.metrics.base import Metric, ScoreContext
from glasshouse.metrics.reconstruction import Mse


@dataclass(frozen=True, kw_only=True)
class Worst(Metric):
    """One number for a whole batch."""

    card: ClassVar = Mse.card
    wording: ClassVar = Mse.wording

    def score(self, claimed, truth, *, context):
        """The largest squared difference."""
        return np.array([float((claimed - truth).square().max())])


def test_one_number_for_several_examples_is_refused():
    images = torch.rand(3, 1, 4, 4)
    with pytest.raises(BadValue) as caught:
        each_of(Worst(), images[:2], images, context=ScoreContext())
    assert "one number per example from score: 3" in caught.value.needs
    assert caught.value.got == "shape (1,)"
    assert "pairwise" in caught.value.fix
