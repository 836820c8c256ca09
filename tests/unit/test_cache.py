import multiprocessing
import os
import time
from pathlib import Path

import pytest
import torch

from glasshouse import cache
from glasshouse.cache import Checkpoint, digest, load_or_make
from glasshouse.errors import BadFile, BadValue


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch):
    monkeypatch.setenv("GLASSHOUSE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def never(_checkpoint):
    raise AssertionError("made again")


def make(value, size=1):
    return lambda _checkpoint: {"x": torch.full((size,), float(value))}


def test_made_once_for_one_key():
    key = {"data": torch.arange(3), "width": 8, "sizes": (1, 2)}
    assert load_or_make("net", key, make(5))["x"].item() == 5
    assert load_or_make("net", {**key, "sizes": [1, 2]}, never)["x"].item() == 5
    assert load_or_make("net", {**key, "width": 9}, make(6))["x"].item() == 6
    assert load_or_make("other", key, make(7))["x"].item() == 7


@pytest.mark.parametrize(
    ("left", "right"),
    [
        (torch.zeros(2), torch.zeros(3)),
        (torch.zeros(2, 3), torch.zeros(3, 2)),
        (torch.zeros(1), torch.zeros(1, dtype=torch.int32)),
        ({"a": torch.zeros(1)}, {"a": torch.ones(1)}),
        ({"a": 1}, {"a": "1"}),
        (b"a", b"b"),
        ([[1], 2], [1, [2]]),
        (torch.tensor(1.0).bfloat16(), torch.tensor(1.0).half()),
    ],
)
def test_different_content_has_different_digests(left, right):
    assert digest(left) != digest(right)
    assert digest(left) == digest(left)


@pytest.mark.parametrize("value", [{"a": float("nan")}, {"a": object()}, {1: 2}, {"f": print}])
def test_what_has_no_digest(value):
    with pytest.raises(BadValue, match="digest of a value"):
        digest(value)


def test_an_interrupted_training_goes_on(place):
    steps = []

    def train(checkpoint, *, stop_at):
        tensors, start = checkpoint.load() or ({"x": torch.zeros(1)}, 0)
        for step in range(start, 4):
            if step == stop_at:
                raise KeyboardInterrupt
            steps.append(step)
            tensors = {"x": tensors["x"] + 1}
            checkpoint.save(tensors, step + 1)
        return tensors

    with pytest.raises(KeyboardInterrupt):
        load_or_make("net", {}, lambda c: train(c, stop_at=2))
    assert load_or_make("net", {}, lambda c: train(c, stop_at=None))["x"].item() == 4
    assert steps == [0, 1, 2, 3]
    assert len(list(place.glob("net/*"))) == 1  # the checkpoint is gone


def test_a_damaged_entry_is_made_again(place, caplog):
    load_or_make("net", {}, make(1))
    (entry,) = place.glob("net/*")
    entry.write_bytes(b"junk")
    assert load_or_make("net", {}, make(2))["x"].item() == 2
    assert "made again" in caplog.text


def test_a_damaged_checkpoint_begins_anew(tmp_path, caplog):
    (tmp_path / "c").write_bytes(b"junk")
    assert Checkpoint(path=tmp_path / "c").load() is None
    assert "begins anew" in caplog.text


def test_the_least_recently_used_goes_first(place, monkeypatch):
    monkeypatch.setenv("GLASSHOUSE_CACHE_GB", str(10_000 / 1e9))
    for i in range(2):
        load_or_make("net", {"i": i}, make(i, size=1000))  # 4 kB each
        entry = place / "net" / f"{digest({'i': i})}.safetensors"
        os.utime(entry, (time.time() - 100 + i, time.time() - 100 + i))
    load_or_make("net", {"i": 0}, never)  # used: now the younger one
    load_or_make("net", {"i": 2}, make(2, size=1000))
    load_or_make("net", {"i": 0}, never)
    with pytest.raises(AssertionError, match="made again"):
        load_or_make("net", {"i": 1}, never)


@pytest.mark.parametrize("given", ["many", "-1", "nan", "inf"])
def test_a_limit_that_is_none(monkeypatch, given):
    monkeypatch.setenv("GLASSHOUSE_CACHE_GB", given)
    with pytest.raises(BadValue, match="GLASSHOUSE_CACHE_GB"):
        cache.limit()


def test_a_folder_that_is_a_file(place):
    place.write_text("")
    with pytest.raises(BadFile, match="set GLASSHOUSE_CACHE"):
        load_or_make("net", {}, make(1))


def test_default_folder_is_the_users(monkeypatch):
    monkeypatch.delenv("GLASSHOUSE_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", "/x")
    monkeypatch.setattr("sys.platform", "linux")
    assert cache.folder() == Path("/x/glasshouse")
    monkeypatch.setattr("sys.platform", "darwin")
    assert cache.folder() == Path.home() / "Library" / "Caches" / "glasshouse"


def count_and_make(log):
    def slow(_checkpoint):
        with Path(log).open("a") as file:
            file.write("made\n")
        time.sleep(0.3)
        return {"x": torch.ones(1)}

    assert load_or_make("net", {}, slow)["x"].item() == 1


def test_two_processes_make_it_once(tmp_path):
    log = str(tmp_path / "log")
    context = multiprocessing.get_context("fork")
    workers = [context.Process(target=count_and_make, args=(log,)) for _ in range(3)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(20)
    assert [worker.exitcode for worker in workers] == [0, 0, 0]
    assert Path(log).read_text() == "made\n"
