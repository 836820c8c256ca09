"""The executor on this machine keeps the contract; that on Ray is in tests/integrations."""

import pytest

from glasshouse.errors import BadValue
from glasshouse.executors.local import Local, choose_executor
from glasshouse.testing.executor_contract import ExecutorContract


class TestLocal(ExecutorContract):
    @pytest.fixture
    def executor(self):
        return Local(jobs=2)


def test_an_address_means_nothing_on_this_machine():
    with pytest.raises(BadValue, match="no address"), choose_executor("local", address="a:1").start():
        pass


def test_a_network_in_memory_stays_in_this_process():
    with pytest.raises(BadValue, match="in memory"):
        choose_executor("ray", here=True)
    assert choose_executor("local", jobs=8, here=True) == Local(here=True)
