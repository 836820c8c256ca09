"""People as units: several pictures of a person are one victim of an interval."""

import numpy as np
import pytest
import torch

from glasshouse.audit.scoring.score import ScoredMetric, join_parts
from glasshouse.audit.simulation.build import build
from glasshouse.data.sources import load
from glasshouse.data.splits import RoleRequest, deal
from glasshouse.errors import BadFile
from glasshouse.rng import Rng
from glasshouse.scenario.load import from_dict
from glasshouse.truth.record import Truth, Used, read_truth, write_truth
from glasshouse.wire import Batch


def scored(people: dict[str, set[int]]) -> ScoredMetric:
    count = len(people)
    return ScoredMetric(
        values=tuple(np.array([float(i)]) for i in range(count)),
        nulls=tuple(np.zeros(1) for _ in range(count)),
        exchanged=tuple(np.full((2, 1), 0.5) for _ in range(count)),
        victims=tuple(people),
        people={name: frozenset(group) for name, group in people.items() if group},
        claimed=frozenset(people),
    )


def test_victims_who_share_a_person_are_one():
    one = scored({"a": {1}, "b": {2}, "c": {1, 3}, "d": {3}, "e": {4}}).by_people()
    assert one.victims == ("a", "b", "e")
    assert [v.tolist() for v in one.values] == [[0.0, 2.0, 3.0], [1.0], [4.0]]
    assert one.claimed == {"a", "b", "e"}
    assert [v.shape for v in one.exchanged] == [(2, 3), (2, 1), (2, 1)]


def test_a_later_victim_can_join_two_earlier_ones():
    assert scored({"a": {1}, "b": {2}, "c": {1, 2}}).by_people().victims == ("a",)


def test_without_people_nothing_changes():
    plain = scored({"a": set(), "b": set()})
    assert plain.by_people() is plain
    apart = scored({"a": {1}, "b": {2}})
    assert apart.by_people() is apart


def test_runs_are_joined_over_people():
    both = join_parts([scored({"a": {1}}), scored({"b": {1}})])
    assert len(both.victims) == 2
    assert len(both.by_people().victims) == 1


def test_groups_travel_from_the_file_to_the_truth(tmp_path):
    images = np.random.default_rng(0).random((6, 4, 4)).astype(np.float32)
    given = {"train_images": images, "train_labels": np.arange(6) % 2}
    np.savez(tmp_path / "faces.npz", **given, train_groups=np.array([7, 7, 8, 8, 9, 9]))
    source = load(f"npz:{tmp_path / 'faces.npz'}")
    part = deal(source, {"private": RoleRequest(size=6)}, rng=Rng.root(0)).private
    assert part.groups.sort().values.tolist() == [7, 7, 8, 8, 9, 9]
    used = {(0, 0): Used(steps=((0, 1),), behaviour="honest")}
    write_truth(Truth(private=part, shards={0: (0, 1)}, used=used), tmp_path / "truth")
    again = read_truth(tmp_path / "truth")
    assert again.people(0, 0) == frozenset(part.groups[:2].tolist())
    np.savez(tmp_path / "bad.npz", **given, train_groups=np.zeros(5))
    with pytest.raises(BadFile, match="one per image"):
        load(f"npz:{tmp_path / 'bad.npz'}")


def test_labels_can_be_the_people():
    raw = {
        "name": "faces",
        "data": {"people": "label", "auxiliary": 20, "heldout": 20},
        "attacks": [{"name": "dlg"}],
        "audit": {"distractors": 9},
    }
    private = build(from_dict(raw), seed=0).setting.private
    assert torch.equal(private.groups, private.labels)


def test_batches_keep_their_groups():
    batch = Batch(inputs=torch.zeros(3, 1, 1, 1), labels=torch.arange(3), groups=torch.tensor([5, 6, 7]))
    assert batch.pick(torch.tensor([2, 0])).groups.tolist() == [7, 5]
