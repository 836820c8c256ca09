"""Contract tests for executors. Subclass as ``TestMyExecutor`` and provide the fixture ``executor``."""

import os
import signal
import time
from pathlib import Path

import pytest
import torch

from glasshouse.errors import BadValue, WorkerKilled
from glasshouse.executors.base import Executor, Piece
from glasshouse.registry import Card
from glasshouse.testing.fixtures import to_provide

Note = tuple[str, str, float]
"""(file, name to write into it, seconds to sleep in between)."""


def note(task: Note) -> str:
    """Write a begin line, sleep, write an end line; return the name."""
    path, name, seconds = task
    with Path(path).open("a", encoding="utf-8", buffering=1) as file:  # every line is written at once
        file.write(f"begin {name} {os.getpid()}\n")
        time.sleep(seconds)
        file.write(f"end {name} {os.getpid()}\n")
    return name


def once(task: Note) -> str:
    """An idempotent :func:`note`, as pieces must be: does nothing if it has already run."""
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
    """Kill the own process at the first call, as the system does when memory is short."""
    if not Path(path).exists():
        Path(path).touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return "survived"


class ExecutorContract:
    """Contract of an executor."""

    executor = to_provide(Executor)
    """The executor under test, with two parallel jobs."""

    def test_it_describes_itself_and_what_there_is(self, executor: Executor) -> None:
        """The card has a summary; the CPU is always available."""
        assert isinstance(executor.card, Card)
        assert executor.card.summary
        with executor.start() as workers:
            assert "cpu" in workers.devices
            assert workers.jobs >= 1
            assert list(workers.finished()) == []

    def test_every_piece_is_answered_once_also_what_is_submitted_meanwhile(
        self, executor: Executor, tmp_path: Path
    ) -> None:
        """Answers come in any order, with return value, duration and peak memory."""
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
        """Scoring never runs in a process that ran plug-ins."""
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
        """Three pieces with the same lock run one after the other, without overlap."""
        with executor.start() as workers:
            for name in "abc":
                workers.submit(_piece(tmp_path, name, seconds=0.3, lock=str(tmp_path / "lock")))
            assert len(list(workers.finished())) == 3
        lines = [line.split()[:2] for line in (tmp_path / "notes").read_text().splitlines()]
        assert [word for word, _ in lines] == ["begin", "end"] * 3
        assert all(lines[i][1] == lines[i + 1][1] for i in (0, 2, 4))

    def test_what_a_piece_raises_arrives_as_it_was_raised(self, executor: Executor) -> None:
        """Type, message and fields of the error are preserved."""
        with executor.start() as workers:
            workers.submit(Piece(work=_refuse, task="these words", label="errors", room="plug-ins"))
            with pytest.raises(BadValue, match="these words") as caught:
                list(workers.finished())
        assert caught.value.fix == "something else"

    def test_a_piece_whose_process_is_killed_runs_again_or_the_audit_says_so(
        self, executor: Executor, tmp_path: Path
    ) -> None:
        """No piece is lost without an error."""
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
