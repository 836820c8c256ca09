import subprocess
import sys

import pytest
import torch

from glasshouse import registry
from glasshouse.data.partition import partition
from glasshouse.errors import BadValue, UnknownName
from glasshouse.rng import Rng

LABELS = torch.arange(200) % 10
RNG = Rng.root(0)
KINDS = ["dirichlet", "iid", "pathological", "shards", "unequal"]


@pytest.mark.parametrize("kind", KINDS)
def test_parts_are_disjoint_and_the_stream_decides(kind):
    parts, again, other = (partition(LABELS, 8, kind=kind, rng=Rng.root(seed)) for seed in (0, 0, 1))
    together = torch.cat(parts)
    assert len(parts) == 8
    assert all(len(part) for part in parts)
    assert len(together.unique()) == len(together)
    if kind in ("iid", "dirichlet", "unequal"):  # the others leave out what they cannot divide
        assert len(together) == 200
    assert all(torch.equal(a, b) for a, b in zip(parts, again, strict=True))
    assert not torch.equal(torch.cat(other), together)


@pytest.mark.parametrize("kind", KINDS)
def test_examples_are_exact_or_the_mean(kind):
    parts = partition(LABELS, 5, kind=kind, examples=10, rng=RNG)
    assert sum(map(len, parts)) == 50 or kind == "pathological"
    if kind == "iid":
        assert {len(part) for part in parts} == {10}


def test_sizes_grow_in_equal_steps_to_the_ratio():
    sizes = [len(part) for part in partition(LABELS, 5, kind="unequal", examples=12, ratio=2, rng=RNG)]
    assert sorted(sizes) == [8, 10, 12, 14, 16]
    assert sizes != sorted(sizes)


def spread(kind, **settings):
    """Mean number of different labels that a client holds."""
    parts = partition(LABELS, 10, kind=kind, rng=RNG, **settings)
    return sum(len(LABELS[part].unique()) for part in parts) / 10


def test_kinds_differ_in_how_labels_mix():
    assert spread("pathological") == 2
    assert spread("shards") <= 4
    assert spread("dirichlet", alpha=0.1) < spread("dirichlet", alpha=100) <= 10
    assert spread("iid") > 7


@pytest.mark.parametrize(
    ("settings", "error", "words"),
    [
        ({"kind": "idd"}, UnknownName, "did you mean iid"),
        ({"clients": 201}, BadValue, "200 images"),
        ({"clients": 0}, BadValue, "clients >= 1"),
        ({"clients": 5, "examples": 41}, BadValue, "205 images (5 clients with at least 41 each)"),
        ({"alpha": 0.5}, BadValue, "no alpha"),
        ({"ratio": 2.0}, BadValue, "no ratio"),
        ({"kind": "unequal", "ratio": 0.5}, BadValue, "data.ratio"),
        ({"kind": "dirichlet", "alpha": 0.0}, BadValue, "alpha > 0"),
        ({"kind": "dirichlet", "alpha": 0.01, "clients": 150}, BadValue, "raise data.alpha"),
        ({"kind": "shards", "clients": 120}, BadValue, "2 pieces"),
        ({"kind": "pathological", "labels": torch.zeros(9, dtype=torch.int64)}, BadValue, "from 1 to 1"),
        ({"kind": "pathological", "clients": 150}, BadValue, "at least one image"),
    ],
)
def test_refusals_by_their_words(settings, error, words):
    arguments = {"labels": LABELS, "clients": 4, "rng": RNG, **settings}
    with pytest.raises(error) as caught:
        partition(arguments.pop("labels"), arguments.pop("clients"), **arguments)
    assert words in str(caught.value)


@pytest.mark.parametrize("kind", KINDS)
def test_cards(kind):
    assert registry.card("partitioners", kind).summary


def test_the_extra_is_not_imported_for_iid_and_named_where_it_is_needed():
    code = (
        "import sys, torch; from glasshouse.rng import Rng; from glasshouse.data.partition import partition\n"
        "from glasshouse.data.sources import load; load('digits')\n"
        "from glasshouse.errors import NotInstalled\n"
        "partition(torch.zeros(4), 2, rng=Rng.root(0))\n"
        "assert 'flwr_datasets' not in sys.modules and 'datasets' not in sys.modules\n"
        "sys.modules['flwr_datasets'] = sys.modules['datasets'] = None\n"
        "try: import glasshouse.data.partitioners.flower\n"
        "except NotInstalled as error: print(error)\n"
        "try: import glasshouse.data.kinds.hf\n"
        "except NotInstalled as error: print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.count("glasshouse[flower-data]") == 2
