"""A sealed process: what it can reach, what it can leave behind, and what its answers can carry."""

import ctypes
import os
import socket
from pathlib import Path

import pytest
import torch

from glasshouse.audit import sealed as sealing
from glasshouse.audit.namespace import _KEYCTL, needed_places
from glasshouse.audit.sealed import is_foreign, sealed
from glasshouse.cache import load_or_make
from glasshouse.errors import BadFile, Inapplicable, WorkerKilled

MEMORY: list[str] = []


def attempt(work):
    """What ``work`` returns, or the name of its error."""
    try:
        return str(work())
    except OSError as error:
        return type(error).__name__


def opened(serve, tmp_path, **options):
    given = {
        "hide": [tmp_path / "run"],
        "show": [tmp_path / "run" / "side"],
        "foreign": True,
        "subject": "a loss",
    }
    return sealed(serve, **{**given, **options})


@pytest.fixture
def run(tmp_path):
    for part in ("side", "truth"):
        (tmp_path / "run" / part).mkdir(parents=True)
        (tmp_path / "run" / part / "file").write_text(part)
    with opened(lambda _: (0, {}), tmp_path, foreign=False) as process:
        if process.why_open:
            pytest.skip(process.why_open)
    return tmp_path / "run"


def test_it_sees_its_side_and_not_the_truth(run, tmp_path):
    def serve(part):
        return attempt((run / part / "file").read_text), {}

    with opened(serve, tmp_path) as process:
        assert process.ask("side")[0] == "side"
        assert process.ask("truth")[0] == "FileNotFoundError"


def test_nothing_that_it_writes_or_remembers_is_left(run, tmp_path):
    places = [run / "side" / "x", Path.cwd() / "x", Path.home() / "x", tmp_path / "x", Path("/dev/shm/x")]

    def serve(place):
        MEMORY.append(place)
        return attempt(lambda: Path(place).write_text("truth")), {}

    with opened(serve, tmp_path) as process:
        for place in places:
            process.ask(str(place))
    assert not any(place.exists() for place in places)
    assert MEMORY == []


def test_it_reaches_no_network_no_process_and_no_device(run, tmp_path):
    def serve(_):
        answers = [
            attempt(lambda: socket.create_connection(("127.0.0.1", 9), 1)),
            [path.name for path in Path("/proc").iterdir() if path.name.isdigit()],
            attempt(lambda: Path("/proc/sys/kernel/core_pattern").write_text("x")),
            sorted(path.name for path in Path("/dev").iterdir()),
        ]
        return answers, {}

    with opened(serve, tmp_path) as process:
        network, processes, kernel, devices = process.ask(0)[0]
    assert network == "OSError"
    assert processes == ["1"]
    assert kernel == "OSError"
    assert [name for name in devices if not name.startswith("nvidia")] == [
        "full",
        "null",
        "random",
        "urandom",
        "zero",
    ]


def test_it_leaves_no_key_in_the_keyring_of_the_session(run, tmp_path):
    """A keyring is inherited, no namespace is around it, and it outlives the process."""
    number, ring, kind = _KEYCTL.get(os.uname().machine), -3, b"user"
    library = ctypes.CDLL(None, use_errno=True)
    if number is None or library.syscall(number, 1, None) < 0:
        pytest.skip("no keyrings here")

    def look() -> int:
        return library.syscall(number, 10, ring, kind, b"truth", 0)

    def serve(_):
        add = number - 2  # add_key(2), of which the number is two less on all of these machines
        return [library.syscall(add, kind, b"truth", b"x", 1, ring), look()], {}

    with opened(serve, tmp_path) as process:
        added, found = process.ask(0)[0]
    assert added == found > 0
    assert look() < 0


def test_answers_are_json_and_tensors(run, tmp_path):
    with opened(lambda x: ({"twice": 2 * x}, {"t": torch.full((2,), float(x))}), tmp_path) as process:
        answer, tensors = process.ask(3)
    assert answer == {"twice": 6}
    assert tensors["t"].tolist() == [3.0, 3.0]


def test_what_is_no_answer_is_refused_and_a_death_is_noticed(run, tmp_path):
    def serve(question):
        if question == "die":
            os._exit(9)
        return {"an": "answer"}, {}

    with opened(serve, tmp_path) as process:
        assert process.ask("live")[0] == {"an": "answer"}
        with pytest.raises(WorkerKilled):
            process.ask("die")
    here, there = socket.socketpair()
    with here, there.makefile("wb") as pipe:
        text = b"import os"
        pipe.write(sealing._LENGTHS.pack(len(text), 0) + text)
        pipe.flush()
        with here.makefile("rb") as reader, pytest.raises(BadFile, match="JSON and safetensors"):
            sealing._receive(reader, "a loss")
    there.close()


def test_what_is_raised_in_it_arrives_in_words(run, tmp_path):
    def serve(_):
        raise BadFile("a cache", needs="room", got="none", fix="more")

    with (
        opened(serve, tmp_path, foreign=False) as process,
        pytest.raises(Inapplicable, match=r"BadFile: a cache(.|\n)*none"),
    ):
        process.ask(0)
    # Code of others may say what it met: of its errors the kind arrives.
    with opened(serve, tmp_path) as process, pytest.raises(Inapplicable) as caught:
        process.ask(0)
    assert caught.value.got == "BadFile; what it said is withheld"


def test_a_cache_that_may_only_be_read_answers_what_it_holds(run, tmp_path, monkeypatch):
    """A generator was trained before its loss is judged; the lock of its entry cannot be taken there."""
    monkeypatch.setenv("GLASSHOUSE_CACHE", str(tmp_path / "cache"))
    load_or_make("generator", {"of": 1}, lambda _: {"x": torch.ones(2)})

    def serve(number):
        def train(_):
            return {"x": torch.zeros(2)}

        return None, load_or_make("generator", {"of": number}, train)

    with opened(serve, tmp_path, show=[tmp_path / "cache"], foreign=False) as process:
        assert process.ask(1)[1]["x"].tolist() == [1.0, 1.0]
        with pytest.raises(Inapplicable, match="a folder that can be written"):
            process.ask(2)


def test_code_of_others_does_not_run_where_nothing_can_be_sealed(tmp_path, monkeypatch):
    def forbidden(**_):
        raise PermissionError(1, "unshare: Operation not permitted")

    monkeypatch.setattr(sealing, "confine", forbidden)
    with (
        pytest.raises(Inapplicable, match="a sealed process"),
        opened(lambda _: (0, {}), tmp_path),
    ):
        raise AssertionError("the block must not begin")
    with opened(lambda x: (x, {}), tmp_path, foreign=False) as process:
        assert "not permitted" in process.why_open
        assert process.ask(5)[0] == 5


def test_what_is_foreign():
    assert is_foreign(Path())
    assert not is_foreign(Inapplicable("a", needs="b", got="c", fix="d"))


@pytest.mark.parametrize("name", ["Inapplicable", "Whatever"])
def test_a_class_that_says_it_is_ours_is_foreign_unless_it_is_found_there(name):
    """It would run unsealed where no process can be sealed, and its word would be printed as ours."""
    kind = type(name, (), {"__module__": "glasshouse.errors", "__qualname__": name})
    assert is_foreign(kind)
    assert is_foreign(kind())


def test_what_a_sealed_process_needs_is_there():
    assert all(place.exists() for place in needed_places())
