from dataclasses import replace

import numpy as np
import pytest
import torch

from glasshouse.data import splits
from glasshouse.data.base import assemble
from glasshouse.data.sources import load
from glasshouse.data.splits import ROLES, RoleRequest, check_disjoint, deal, image_digests
from glasshouse.errors import BadValue
from glasshouse.rng import Rng
from glasshouse.wire import Batch

RNG = Rng.root(0)


def source(n=40, classes=8, copies=(), test=0):
    """``n`` different images; those in ``copies`` (to, from) are equal."""
    images = np.zeros((n + test, 4, 4), dtype=np.uint8)
    images[:, 0, 0], images[:, 0, 1] = np.arange(n + test) % 256, np.arange(n + test) // 256
    for to, origin in copies:
        images[to] = images[origin]
    labels = np.arange(n + test) % classes
    arrays = {"train": (images[:n], labels[:n])}
    if test:
        arrays["test"] = (images[n:], labels[n:])
    return assemble("toy", arrays, class_names=None, public=True, resize=None)


def identities(batch):
    return set((batch.inputs[:, 0, 0, 0] * 255 + batch.inputs[:, 0, 0, 1] * 65280).round().int().tolist())


def test_sizes_splits_and_the_rest():
    roles = deal(
        source(n=40, test=20),
        {
            "heldout": RoleRequest(split="test"),
            "private": RoleRequest(size=10, split="train"),
            "auxiliary": RoleRequest(size=25),
            "public": RoleRequest(size=5, split="test"),
        },
        rng=RNG,
    )
    parts = roles.parts()
    assert len(parts["private"]) == 10
    assert max(identities(parts["private"])) < 40
    assert len(parts["auxiliary"]) == 25
    assert min(identities(parts["public"])) >= 40
    assert min(identities(parts["heldout"])) >= 40
    assert parts["heldout"].inputs.max() <= 1
    together = [i for batch in parts.values() for i in identities(batch)]
    assert len(together) == len(set(together))


def test_the_seed_decides_and_nothing_else():
    wants = {"private": RoleRequest(size=10), "auxiliary": RoleRequest(size=10)}
    first, again = (deal(source(), wants, rng=RNG).private for _ in range(2))
    other = deal(source(), wants, rng=Rng.root(1)).private
    assert torch.equal(first.inputs, again.inputs)
    assert not torch.equal(first.inputs, other.inputs)
    alone = deal(source(), {"private": RoleRequest(size=10)}, rng=RNG).private
    assert torch.equal(first.inputs, alone.inputs)  # other roles do not change what a role gets


def test_copies_serve_one_role_only():
    """Every image twice: in train and in test."""
    twice = source(n=20, test=20, copies=[(20 + i, i) for i in range(20)])
    wants = {"private": RoleRequest(size=8, split="train"), "auxiliary": RoleRequest(split="test")}
    roles = deal(twice, wants, rng=RNG)
    assert roles.duplicates == {"private": 0, "auxiliary": 8}
    assert len(roles.auxiliary) == 12
    with pytest.raises(BadValue, match="8 more are copies of other roles' images"):
        deal(twice, {**wants, "auxiliary": RoleRequest(size=13, split="test")}, rng=RNG)


def test_people_are_in_one_role():
    roles = deal(
        source(n=40, classes=8),
        {"private": RoleRequest(size=7), "auxiliary": RoleRequest(size=10), "heldout": RoleRequest()},
        by="label",
        rng=RNG,
    )
    people = {role: set(batch.labels.tolist()) for role, batch in roles.parts().items()}
    assert {role: len(who) for role, who in people.items()} == {"private": 2, "auxiliary": 2, "heldout": 4}
    assert len(set.union(*people.values())) == 8
    assert len(roles.private) == 7


def test_classes_can_be_named():
    wants = {"private": RoleRequest(size=10, classes=(1, 3)), "public": RoleRequest(classes=(0, 2))}
    roles = deal(source(), wants, rng=RNG)
    assert set(roles.private.labels.tolist()) <= {1, 3}
    assert set(roles.public.labels.tolist()) == {0, 2}
    assert len(roles.public) == 10


@pytest.mark.parametrize(
    ("wants", "words"),
    [
        ({}, "at least one role"),
        ({"privat": RoleRequest(size=1)}, "roles among"),
        ({"private": RoleRequest(size=0)}, "leave the role out"),
        ({"private": RoleRequest(size=41)}, "40 that no other role holds"),
        ({"private": RoleRequest(size=1, split="test")}, "a split among train"),
        ({"private": RoleRequest(size=1, classes=(8,))}, "classes from 0 to 7"),
        ({"private": RoleRequest(size=40), "heldout": RoleRequest()}, "heldout part"),
    ],
)
def test_refusals_by_their_words(wants, words):
    with pytest.raises(BadValue) as caught:
        deal(source(), wants, rng=RNG)
    assert words in str(caught.value)


def test_parts_of_two_sources_are_compared_by_content():
    a, b = torch.rand(2, 3, 1, 4, 4, generator=torch.Generator().manual_seed(0))
    labels = torch.zeros(3, dtype=torch.int64)
    parts = {"private": Batch(inputs=a, labels=labels), "auxiliary": Batch(inputs=b, labels=labels)}
    check_disjoint(parts)
    with pytest.raises(BadValue, match="1 images in both"):
        check_disjoint({**parts, "auxiliary": Batch(inputs=torch.stack([b[0], a[2], b[2]]), labels=labels)})


def test_every_role_is_a_field():
    roles = deal(source(), {role: RoleRequest(size=2) for role in ROLES}, rng=RNG)
    assert tuple(roles.parts()) == ROLES


def test_the_digits_themselves_hold_no_copies():
    digits = load("digits")
    roles = deal(
        digits, {"private": RoleRequest(split="test"), "auxiliary": RoleRequest(split="train")}, rng=RNG
    )
    assert roles.duplicates == {"private": 0, "auxiliary": 0}


def test_the_deal_is_checked_after_it_was_made(monkeypatch):
    """Were copies overlooked while dealing, the comparison at the end would still see them."""
    whole = splits._pool

    def blind(*arguments):
        pool = whole(*arguments)
        return replace(pool, content=torch.arange(len(pool.row)))

    monkeypatch.setattr(splits, "_pool", blind)
    twice = source(n=20, test=20, copies=[(20 + i, i) for i in range(20)])
    with pytest.raises(BadValue, match="images in both"):
        deal(twice, {"private": RoleRequest(split="train"), "auxiliary": RoleRequest(split="test")}, rng=RNG)


def test_spare_images_are_what_all_parts_leave_and_change_none_of_them():
    wants = {
        "private": RoleRequest(size=5),
        "heldout": RoleRequest(size=10, split="test"),
        "public": RoleRequest(split="train"),
    }
    without, some = deal(source(test=40), wants, rng=RNG), deal(source(test=40), wants, spare=3, rng=RNG)
    assert without.spare is None
    assert some.spare is not None
    assert len(some.spare) == 3
    for role, batch in without.parts().items():
        assert torch.equal(batch.inputs, some.parts()[role].inputs)
    every = deal(source(test=40), wants, spare=10_000, rng=RNG)  # fewer are no error
    assert every.spare is not None
    contents = [set(image_digests(b.inputs)) for b in (*every.parts().values(), every.spare)]
    assert len(set().union(*contents)) == sum(map(len, contents))
    assert deal(source(test=40), {"private": RoleRequest(size=5)}, spare=3, rng=RNG).spare is None
