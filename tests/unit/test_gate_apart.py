"""Messages are opened in processes under limits: what goes wrong there stays there."""

import hashlib
import operator
import os
import signal
import time
from pathlib import Path

import pytest

from glasshouse.gate.apart.calls import NotOpened, Opener
from glasshouse.gate.apart.limits import Limits
from glasshouse.gate.apart.spool import Spool, copy_into, size_of

SMALL = Limits(memory=2**27, processor=30, clock=60, file=2**20)


@pytest.fixture(scope="module")
def opener():
    one = Opener(("hashlib",))
    yield one
    one.close()


def limits(**more):
    return Limits(**{**vars(SMALL), **more})


def test_a_call_returns_what_it_returns_there(opener):
    assert opener.call(operator.add, SMALL, (1, 2), ()) == 3
    assert opener.call(os.getpid, SMALL, (), ()) not in (os.getpid(), opener.pid)


def test_descriptors_are_handed_on(opener, tmp_path):
    spool = Spool.inside(tmp_path)
    spool["a"] = b"row"
    number = opener.call(os.dup, SMALL, (), (spool.descriptor,))
    assert number > 2
    assert opener.call(os.isatty, SMALL, (), (spool.descriptor,)) is False


@pytest.mark.parametrize(
    ("work", "arguments", "settings", "word"),
    [
        (bytearray, (2**31,), {}, "MemoryError"),
        (time.sleep, (60,), {"clock": 1}, "ended"),
        (hashlib.pbkdf2_hmac, ("sha256", b"a", b"b", 10**9), {"processor": 1}, "ended"),
        (os.abort, (), {}, "ended"),
        (operator.truediv, (1, 0), {}, "ZeroDivisionError"),
        (bytes, (3,), {}, "ended"),  # no JSON
    ],
    ids=["memory", "clock", "processor", "crash", "error", "no answer"],
)
def test_what_goes_wrong_there_is_one_word_here(opener, work, arguments, settings, word):
    begin = time.monotonic()
    with pytest.raises(NotOpened, match=word):
        opener.call(work, limits(**settings), arguments, ())
    assert time.monotonic() - begin < 30
    assert opener.call(operator.add, SMALL, (1, 2), ()) == 3


def test_a_killed_opener_is_started_anew(opener):
    before = opener.call(os.getppid, SMALL, (), ())
    assert before == opener.pid
    os.kill(before, signal.SIGKILL)
    time.sleep(0.2)
    assert opener.call(os.getppid, SMALL, (), ()) == opener.pid != before


def test_a_closed_opener_leaves_no_process(tmp_path):
    one = Opener()
    one.call(operator.add, SMALL, (1, 2), ())
    pid = one.pid
    one.close()
    assert not Path(f"/proc/{pid}").exists()
    assert one.pid == 0


def test_a_spool_gives_back_what_was_put_in(tmp_path):
    spool = Spool.inside(tmp_path)
    spool["a"], spool["b"] = b"1" * 70_000, b""
    other = spool.at(spool.places)
    assert other["a"] == b"1" * 70_000
    assert other["b"] == b""
    other["c"] = b"three"  # behind what stands there
    assert spool["a"] == b"1" * 70_000
    assert other["c"] == b"three"
    assert list(tmp_path.iterdir()) == []
    spool.clear()
    with pytest.raises(OSError, match="cut"):
        other["a"]


def test_nothing_that_comes_later_stands_at_an_old_place(tmp_path):
    """Who still reads objects that were cleared gets nothing of others."""
    spool = Spool.inside(tmp_path)
    spool["a"] = b"1" * 1000
    old = spool.at(spool.places)
    spool.clear()
    spool.add("b", b"2" * 500, b"", memoryview(b"3" * 5000))
    assert old["a"] == bytes(1000)
    assert spool["b"] == b"2" * 500 + b"3" * 5000


def test_an_object_is_read_in_pieces(tmp_path):
    spool = Spool.inside(tmp_path)
    spool["before"], spool["a"] = b"x", bytes(range(200))
    for contents in (spool, {"a": bytes(range(200))}):
        target = bytearray(50)
        copy_into(contents, "a", 100, memoryview(target))
        assert (bytes(target), size_of(contents, "a")) == (bytes(range(100, 150)), 200)
    with pytest.raises(OSError, match="cut"):
        spool.copy_into("before", 0, memoryview(bytearray(2)))


def test_a_file_grows_no_further_than_its_limit(opener, tmp_path):
    path = tmp_path / "a"
    path.touch()
    with pytest.raises(NotOpened, match=r"OSError|ended"):
        opener.call(os.truncate, limits(file=2**16), (str(path), 2**17), ())
    assert path.stat().st_size == 0
