"""How a process computes."""

import ctypes
import sys
from types import SimpleNamespace

import torch

from glasshouse.process import settle


def test_a_settled_process_has_one_thread_and_may_be_settled_again() -> None:
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        settle()
        settle()
        assert torch.get_num_threads() == 1
    finally:
        torch.set_num_threads(before)


def test_freed_memory_is_kept_on_linux_and_elsewhere_nothing_is_asked_for(monkeypatch) -> None:
    asked: list[tuple[int, int]] = []
    library = SimpleNamespace(mallopt=lambda *given: asked.append(given))
    monkeypatch.setattr(ctypes, "CDLL", lambda name: library)
    monkeypatch.setattr(sys, "platform", "win32")
    settle()
    assert asked == []
    monkeypatch.setattr(sys, "platform", "linux")
    settle()
    assert asked == [(-3, 2**28), (-1, 2**29)]  # M_MMAP_THRESHOLD and M_TRIM_THRESHOLD of malloc.h
