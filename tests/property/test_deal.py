"""Whatever copies a source holds: no image is in two roles, and nobody goes without what could be had."""

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from glasshouse.data.base import assemble
from glasshouse.data.partition import partition
from glasshouse.data.splits import ROLES, RoleRequest, deal
from glasshouse.errors import BadValue
from glasshouse.rng import Rng


@st.composite
def cases(draw):
    """Pictures from few contents (many copies), people, and roles with sizes that may not all fit."""
    contents = draw(st.lists(st.integers(0, 11), min_size=4, max_size=30))
    people = draw(st.lists(st.integers(0, 4), min_size=len(contents), max_size=len(contents)))
    roles = draw(st.lists(st.sampled_from(ROLES), min_size=1, max_size=4, unique=True))
    wants = {role: RoleRequest(size=draw(st.integers(1, 5))) for role in roles}
    if draw(st.booleans()):
        wants[roles[-1]] = RoleRequest()
    return contents, people, wants, draw(st.integers(0, 5))


def source(contents, people):
    images = np.zeros((len(contents), 2, 2), dtype=np.uint8)
    images[:, 0, 0] = contents
    return assemble("toy", {"train": (images, np.array(people))}, class_names=None, public=True, resize=None)


@settings(max_examples=60, deadline=None)
@given(cases(), st.sampled_from(["image", "label"]))
def test_no_content_and_nobody_is_shared(case, by):
    contents, people, wants, seed = case
    try:
        roles = deal(source(contents, people), wants, by=by, rng=Rng.root(seed))
    except BadValue as refused:
        assert "that no other role holds" in refused.got  # noqa: PT017  a refusal is one of two right answers
        return
    records, who = [], []
    for role, batch in roles.parts().items():
        assert len(batch) == (wants[role].size or len(batch)) > 0
        records.append(set((batch.inputs[:, 0, 0, 0] * 255).round().int().tolist()))
        who.append(set(batch.labels.tolist()))
    assert sum(map(len, records)) == len(set.union(*records))
    if by == "label":
        assert sum(map(len, who)) == len(set.union(*who))


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 11), min_size=2, max_size=30), st.integers(0, 5))
def test_the_rest_is_all_that_can_be_had(contents, seed):
    """One image for the private role; the other gets every image that is no copy of it."""
    toy = source(contents, [0] * len(contents))
    wants = {"private": RoleRequest(size=1), "heldout": RoleRequest()}
    if len(set(contents)) == 1:
        return
    roles = deal(toy, wants, rng=Rng.root(seed))
    result = int((roles.private.inputs[0, 0, 0, 0] * 255).round())
    assert len(roles.heldout) == sum(c != result for c in contents)
    assert roles.duplicates["heldout"] == contents.count(result) - 1


@settings(max_examples=25, deadline=None)
@given(
    st.lists(st.integers(0, 4), min_size=1, max_size=60),
    st.integers(1, 6),
    st.sampled_from(["iid", "dirichlet", "pathological", "shards"]),
    st.integers(0, 3),
)
def test_clients_share_nothing_and_none_is_empty(labels, clients, kind, seed):
    try:
        parts = partition(torch.tensor(labels), clients, kind=kind, rng=Rng.root(seed))
    except BadValue:
        return
    together = torch.cat(parts)
    assert len(parts) == clients
    assert all(len(part) for part in parts)
    assert len(torch.unique(together)) == len(together)
    assert bool((together < len(labels)).all())
    if kind == "iid":
        assert max(map(len, parts)) - min(map(len, parts)) <= 1
