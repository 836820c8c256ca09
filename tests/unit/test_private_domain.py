"""Roles by class and domain: who holds which class in which domain, and that nothing is in two roles."""

import numpy as np
import pytest
import torch

from glasshouse.data.base import assemble
from glasshouse.data.domains import BoxBlur, LowerHalfMask, hidden_rows
from glasshouse.data.private_domain import ClassWant, deal_classes
from glasshouse.data.sources import load
from glasshouse.errors import BadValue
from glasshouse.rng import Rng

MASK = [LowerHalfMask(fill=0.0)]


def source(classes=6, each=10, side=8, seed=0):
    images = np.random.default_rng(seed).integers(1, 255, (classes * each, side, side), dtype=np.uint8)
    labels = np.repeat(np.arange(classes), each)
    return assemble("toy", {"train": (images, labels)}, class_names=None, public=False, resize=None)


def dealt(want, **how):
    return deal_classes(source(), want, shifts=how.pop("shifts", MASK), rng=Rng.root(0), **how)


def test_private_are_the_targets_and_public_the_rest_and_all_shifted():
    roles = dealt(ClassWant(targets=2, heldout=0.2))
    assert sorted(set(roles.private.labels.tolist())) == [0, 1]
    assert len(roles.private) == 16
    assert len(roles.heldout) == 4
    clear = roles.public.pick(torch.arange(roles.sensitive))
    shifted = roles.public.pick(torch.arange(roles.sensitive, len(roles.public)))
    assert sorted(set(clear.labels.tolist())) == [2, 3, 4, 5]
    assert sorted(set(shifted.labels.tolist())) == [0, 1, 2, 3, 4, 5]
    assert (shifted.inputs[:, :, 4:] == 0).all()
    assert (clear.inputs[:, :, 4:] > 0).all()


def test_same_photos_are_the_very_private_ones_and_never_held_out_ones():
    roles = dealt(ClassWant(targets=2, heldout=0.2))
    top = {x[:, :4].numpy().tobytes() for x in roles.public.inputs[roles.sensitive :]}
    assert {x[:, :4].numpy().tobytes() for x in roles.private.inputs} <= top
    assert not {x[:, :4].numpy().tobytes() for x in roles.heldout.inputs} & top


def test_other_photos_share_none():
    roles = dealt(ClassWant(targets=2, same_photos=False))
    top = {x[:, :4].numpy().tobytes() for x in roles.public.inputs[roles.sensitive :]}
    assert not {x[:, :4].numpy().tobytes() for x in roles.private.inputs} & top
    assert len(roles.private) == 10


def test_new_labels_name_the_source_s_classes():
    roles = dealt(ClassWant(targets=2, chosen=(4, 1), identities=5))
    assert roles.classes[:2] == (4, 1)
    assert len(roles.classes) == 5
    whole = source().splits["train"].batch()
    for label, old in ((0, 4), (1, 1)):
        mine = {x.numpy().tobytes() for x in roles.private.inputs[roles.private.labels == label]}
        assert mine == {x.numpy().tobytes() for x in whole.inputs[whole.labels == old]}


def test_limits_on_images():
    roles = dealt(ClassWant(targets=2, per_class=4, sensitive=7))
    assert len(roles.private) == 8
    assert roles.sensitive == 7
    assert len(roles.public) == 7 + 6 * 4


def test_another_source_is_the_other_domain():
    other = source(seed=1)
    roles = dealt(ClassWant(targets=2), shifts=[], other=other)
    heldout = {x.numpy().tobytes() for x in other.splits["train"].batch().inputs}
    assert {x.numpy().tobytes() for x in roles.public.inputs[roles.sensitive :]} == heldout


def test_the_seed_decides_who_is_a_target():
    want = ClassWant(targets=4, per_class=5)
    chosen = {deal_classes(load("digits"), want, shifts=MASK, rng=Rng.root(s)).classes[:4] for s in range(6)}
    assert len(chosen) > 3


@pytest.mark.parametrize(
    ("want", "how", "needs"),
    [
        (ClassWant(targets=2), {"shifts": []}, "another domain"),
        (ClassWant(targets=6), {}, "targets < identities"),
        (ClassWant(targets=2, chosen=(1, 1)), {}, "2 different classes"),
        (ClassWant(targets=2), {"other": source(classes=5)}, "same classes and image size"),
    ],
)
def test_refusals(want, how, needs):
    with pytest.raises(BadValue) as caught:
        dealt(want, **how)
    assert needs in caught.value.needs


def test_hidden_rows_of_chained_shifts():
    assert hidden_rows([BoxBlur(), LowerHalfMask()], 64) == (32, 64)


@pytest.mark.parametrize(
    ("shares", "height", "rows"),
    [
        ((0.5, 1.0), 64, (32, 64)),
        ((0.5, 1.0), 7, (3, 7)),
        ((0.29, 0.58), 100, (29, 58)),
        ((0, 0.1), 8, (0, 1)),
    ],
)
def test_hidden_rows_by_shares_of_the_height_come_before_what_shifts_say(shares, height, rows):
    assert hidden_rows([LowerHalfMask()], height, shares=shares) == rows
