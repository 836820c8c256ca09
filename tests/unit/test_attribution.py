"""Whose image, and of which class: judged on recovered examples alone."""

import numpy as np
import pytest
import torch

from glasshouse.errors import Undefined
from glasshouse.metrics.attribution import Attribution, LeakedLabels, said_of_recovered
from glasshouse.metrics.base import ScoreContext

CONTEXT = ScoreContext(classes=10)
ORIGINALS = torch.rand((4, 1, 8, 8), generator=torch.Generator().manual_seed(0))
CLAIMED = torch.cat((ORIGINALS[[2, 0]], torch.rand((1, 1, 8, 8), generator=torch.Generator().manual_seed(1))))


def test_only_recovered_examples_are_judged():
    output = said_of_recovered(CLAIMED, torch.tensor([1, 0, 1]), ORIGINALS, context=CONTEXT)
    assert output.tolist() == [0, -2, 1, -2]
    owners = torch.tensor([0, 0, 1, 1])
    assert Attribution().score(output, owners, context=CONTEXT).tolist() == [1.0, 1.0]
    assert Attribution().score(output, 1 - owners, context=CONTEXT).tolist() == [0.0, 0.0]


def test_silence_is_chance():
    output = said_of_recovered(CLAIMED, None, ORIGINALS, context=CONTEXT)
    assert output.tolist() == [-1, -2, -1, -2]
    assert Attribution().score(output, torch.tensor([0, 1, 2, 3]), context=CONTEXT).tolist() == [0.25, 0.25]
    np.testing.assert_allclose(LeakedLabels().score(output, torch.arange(4), context=CONTEXT), 0.1)


def test_nothing_recovered_is_undefined():
    with pytest.raises(Undefined, match="at least one example recovered"):
        Attribution().score(torch.full((4,), -2), torch.arange(4), context=CONTEXT)
