"""Batches are recorded whatever other threads of the process do."""

from threading import Event, Thread

import torch
from torch import nn
from torch.nn import functional

from glasshouse.integrations.steps import Steps, observed


class Waits(nn.Module):
    """A network in whose first call another thread ends."""

    def __init__(self, before):
        super().__init__()
        self.layer, self.before = nn.Linear(3, 2), before

    def forward(self, x):
        self.before()
        return self.layer(x)


def test_a_client_that_ends_during_the_step_of_another_hides_no_batch():
    started, ends = Event(), Event()

    def other():
        with observed(Steps()):
            started.set()
            ends.wait(10)

    thread = Thread(target=other)
    thread.start()
    started.wait(10)

    def end():
        ends.set()
        thread.join(10)

    steps, net = Steps(), Waits(end)
    with observed(steps):
        for _ in range(3):
            functional.cross_entropy(net(torch.rand(4, 3)), torch.tensor([0, 1, 0, 1])).backward()
    assert [len(batch) for batch in steps.batches] == [4, 4, 4]
