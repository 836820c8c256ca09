"""What every executor promises. Subclass as ``TestMyExecutor`` and provide the fixture ``executor``."""

import os
import signal
import time
from pathlib import Path

import pytest
import torch

from glasshouse.errors import BadValue, WorkerKilled
from glasshouse.executors.base import Executor, Piece
from glasshouse.registry import Card

__all__ = ["ExecutorContract", "Note", "note"]

Note = tuple[str, str, float]
"""A file, what to write into it, and for how many seconds to work in between."""


def note(task: Note) -> str:
    """Write that it begins and, later, that it ends; returns what was written of it."""
    path, name, seconds = task
    with Path(path).open("a", encoding="utf-8") as file:
        file.write(f"begin {name} {os.getpid()}\n")
    time.sleep(seconds)
    with Path(path).open("a", encoding="utf-8") as file:
        file.write(f"end {name} {os.getpid()}\n")
    return name


def once(task: Note) -> str:
    """A :func:`note` that is idempotent, as pieces are: what is there already is kept."""
    done = Path(task[0]).with_suffix(f".{task[1]}")
    if not done.exists():
        note(task)
        done.touch()
    return task[1]


def _where(_: object) -> tuple[int, int]:
    return os.getpid(), torch.get_num_threads()


def _refuse(words: str) -> None:
    raise BadValue(words, needs="this", got="that", fix="something else")


def _end_at_first(path: str) -> str:
    """As the system does when memory is short; only where nobody ended before."""
    if not Path(path).exists():
        Path(path).touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return "survived"


class ExecutorContract:
    """Promises of an executor."""

    @pytest.fixture
    def executor(self) -> Executor:
        """The executor under test, for two pieces at a time."""
        raise NotImplementedError

    def test_it_describes_itself_and_what_there_is(self, executor: Executor) -> None:
        """The card has a summary; pieces may always ask for the CPU."""
        assert isinstance(executor.card, Card)
        assert executor.card.summary
        with executor.start() as workers:
            assert "cpu" in workers.devices
            assert workers.jobs >= 1
            assert list(workers.finished()) == []

    def test_every_piece_is_answered_once_also_what_is_submitted_meanwhile(
        self, executor: Executor, tmp_path: Path
    ) -> None:
        """In any order, with what it returned, how long it took and how much memory."""
        answers = {}
        with executor.start() as workers:
            for name in "abcd":
                workers.submit(_piece(tmp_path, name))
            for piece, answer in workers.finished():
                assert piece.task[1] not in answers
                answers[answer.value] = answer
                if answer.value in "ab":
                    workers.submit(_piece(tmp_path, answer.value * 2))
        assert set(answers) == {"a", "b", "c", "d", "aa", "bb"}
        assert all(answer.seconds >= 0.01 and answer.peak_mb >= 0 for answer in answers.values())

    def test_pieces_compute_in_one_thread_and_rooms_share_no_process(self, executor: Executor) -> None:
        """Where plug-ins ran, nothing is scored."""
        processes: list[set[int]] = []
        with executor.start() as workers:
            for room in ("plug-ins", "scores"):
                for _ in range(4):
                    workers.submit(Piece(work=_where, task=None, label="questions", room=room))
                answers = [answer.value for _, answer in workers.finished()]
                assert {threads for _, threads in answers} == {1}
                processes.append({pid for pid, _ in answers})
        assert processes[0].isdisjoint(processes[1])

    def test_a_piece_with_a_lock_never_runs_twice_at_once(self, executor: Executor, tmp_path: Path) -> None:
        """Each of three in its turn: no beginning between another's beginning and its end."""
        with executor.start() as workers:
            for name in "abc":
                workers.submit(_piece(tmp_path, name, seconds=0.3, lock=str(tmp_path / "lock")))
            assert len(list(workers.finished())) == 3
        lines = [line.split()[:2] for line in (tmp_path / "notes").read_text().splitlines()]
        assert [word for word, _ in lines] == ["begin", "end"] * 3
        assert all(lines[i][1] == lines[i + 1][1] for i in (0, 2, 4))

    def test_what_a_piece_raises_arrives_as_it_was_raised(self, executor: Executor) -> None:
        """Type, words and parts."""
        with executor.start() as workers:
            workers.submit(Piece(work=_refuse, task="these words", label="errors", room="plug-ins"))
            with pytest.raises(BadValue, match="these words") as caught:
                list(workers.finished())
        assert caught.value.fix == "something else"

    def test_a_piece_whose_process_is_killed_runs_again_or_the_audit_says_so(
        self, executor: Executor, tmp_path: Path
    ) -> None:
        """Nothing is lost in silence."""
        with executor.start() as workers:
            workers.submit(
                Piece(work=_end_at_first, task=str(tmp_path / "ended"), label="ends", room="plug-ins")
            )
            try:
                answers = [answer.value for _, answer in workers.finished()]
            except WorkerKilled as error:
                assert "--resume" in error.fix  # noqa: PT017 - either is right
            else:
                assert answers == ["survived"]


def _piece(folder: Path, name: str, *, seconds: float = 0.01, lock: str = "") -> Piece:
    task: Note = (str(folder / "notes"), name, seconds)
    return Piece(work=note, task=task, label="notes", room="plug-ins", lock=lock)
