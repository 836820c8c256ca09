"""Data are handed over as people have them: tensors, arrays, data sets; else the error says what to give."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

import glasshouse as gh
from glasshouse.api.arrays import has_told_targets, named_arrays
from glasshouse.errors import BadValue

IMAGES = torch.rand(6, 3, 8, 10, generator=torch.Generator().manual_seed(0))
LABELS = torch.tensor([0, 1, 2, 0, 1, 2])
PAIRS = TensorDataset(IMAGES, LABELS)
LAST = IMAGES.permute(0, 2, 3, 1).numpy()


@pytest.mark.parametrize(
    "data",
    [
        (IMAGES, LABELS),
        (IMAGES.numpy(), LABELS.numpy()),
        (LAST, LABELS.tolist()),
        (IMAGES.to_sparse(), LABELS),
        PAIRS,
        DataLoader(PAIRS, batch_size=4, shuffle=True, drop_last=True),
        [(image, int(label)) for image, label in PAIRS],
        {"train_images": LAST, "train_labels": LABELS},
    ],
    ids=["tensors", "numpy, channels first", "numpy", "sparse", "data set", "loader", "items", "names"],
)
def test_every_form_gives_the_same_arrays(data):
    arrays = named_arrays(data)
    assert list(arrays) == ["train_images", "train_labels"]
    assert np.array_equal(arrays["train_images"], LAST)
    assert arrays["train_labels"].tolist() == LABELS.tolist()
    again = named_arrays(arrays)
    assert all(np.array_equal(again[name], values) for name, values in arrays.items())


class Endless(IterableDataset):
    """A stream without a length."""

    def __iter__(self):
        """The same items again."""
        return iter(PAIRS)


@pytest.mark.parametrize(
    ("data", "got", "fix"),
    [
        ((torch.rand(6, 4), LABELS), "shape (6, 4)", "train_inputs"),
        ((IMAGES, None), "Tensor, NoneType", "docs/python.md"),
        ((IMAGES, LABELS, LABELS), "a tuple of 3", "docs/python.md"),
        ("data.npz", "a str", "docs/python.md"),
        ({"x": IMAGES, "y": LABELS}, "the keys x, y", "name them so"),
        ((IMAGES, np.array(list("abcabc"))), "texts such as 'a'", "numpy.unique"),
        (TensorDataset(IMAGES), "a tuple of 1", "or give (images, labels)"),
        (Endless(), "a Endless", "islice"),
        (([*IMAGES, IMAGES[0, :, :4]], [0] * 7), "different shapes", "numpy.stack"),
    ],
    ids=["rows", "no labels", "three", "path", "other names", "texts", "no label", "stream", "two sizes"],
)
def test_what_cannot_be_read_is_refused_with_what_to_give(data, got, fix):
    with pytest.raises(BadValue) as caught:
        named_arrays(data)
    assert got in caught.value.got
    assert fix in caught.value.fix


def test_masks_are_told_to_the_adversary_and_classes_are_not():
    masks = torch.zeros(6, 8, 10, dtype=torch.long)
    assert has_told_targets(named_arrays((IMAGES, masks)))
    assert not has_told_targets(named_arrays((IMAGES, LABELS)))
    assert not has_told_targets(named_arrays((IMAGES, LABELS[:, None])))


def test_a_segmentation_network_has_attacks_that_apply():
    images, masks = torch.rand(60, 3, 8, 8), torch.randint(0, 2, (60, 8, 8))
    network = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.ReLU(), nn.Conv2d(4, 2, 1))
    (scenario,) = gh.check(network, (images, masks)).suite.scenarios
    assert "inverting_gradients" in {attack.name for attack in scenario.attacks}
    assert scenario.grants.labels
