"""How a process computes."""

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
