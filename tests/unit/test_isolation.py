"""What a plug-in does in one call does not reach the next: copies, grants, exceptions, global state."""

import asyncio
import logging
import multiprocessing
import os
import random
import shutil
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch

from glasshouse.attacks.base import Needs
from glasshouse.audit.attacking.call import declared_grants
from glasshouse.audit.attacking.isolation import call_plugin
from glasshouse.audit.log import collect_notes
from glasshouse.errors import BadFile, DiskFull, Inapplicable
from glasshouse.tensors import copy_to
from glasshouse.testing.toys import toy
from glasshouse.transcript.grants import Grants
from glasshouse.wire import Refusal


def test_a_view_is_a_copy_of_its_own_in_which_shared_tensors_stay_shared():
    view = toy(rounds=2).view(client=0)
    copy = copy_to(view, "cpu")
    (before,), (after,) = view.rounds[0].updates.values(), copy.rounds[0].updates.values()
    for name, tensor in after.tensors.items():
        assert torch.equal(tensor, before.tensors[name])
        tensor.mul_(0).add_(7)
        assert not torch.equal(tensor, before.tensors[name])
    shared = torch.ones(2)
    one, two = copy_to((shared, shared), "cpu")
    assert one is two


class Declares:
    def __init__(self, **needs):
        self.needs = Needs(sees=frozenset(), scope="update", **needs)


def test_grants_that_an_attack_does_not_declare_are_not_in_its_view():
    labels, layers = {(0, 1): torch.tensor([3])}, {(0, 1): {"bn.mean": torch.ones(2)}}
    grants = Grants(labels=labels, batch_norm=layers, defense=())
    assert declared_grants(Declares(), grants).names() == ()
    assert declared_grants(Declares(uses=frozenset({"labels"})), grants).names() == ("labels",)
    assert declared_grants(Declares(grants=frozenset({"defense"})), grants).names() == ("defense",)


def fail(error: BaseException):
    raise error


@pytest.mark.parametrize(
    ("error", "needs"),
    [
        (ZeroDivisionError("division by zero"), "a plug-in that runs through"),
        (SystemExit(3), "a plug-in that runs through"),
        (asyncio.CancelledError(), "a plug-in that runs through"),
        (GeneratorExit(), "a plug-in that runs through"),
        (MemoryError(), "less memory than is free"),
        (torch.OutOfMemoryError("CUDA out of memory"), "less memory than is free"),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried"), "less memory than is free"),
        (Inapplicable("x", needs="one example", got="two", fix="-"), "one example"),
        (BadFile("x", needs="a file", got="none", fix="-"), "a file"),
    ],
)
def test_an_exception_is_a_refusal(error, needs):
    with collect_notes() as notes:
        answer = call_plugin(lambda: fail(error), subject="attack 'x' on round0")
    assert isinstance(answer, Refusal)
    assert answer.needs == needs
    foreign = answer.subject == "attack 'x' on round0"
    assert any("Traceback" in note for note in notes) == foreign


@pytest.mark.parametrize("error", [KeyboardInterrupt(), DiskFull("x", needs="", got="", fix="")])
def test_an_interrupt_and_a_full_disk_are_nobodys_refusal(error):
    with pytest.raises(type(error)):
        call_plugin(lambda: fail(error), subject="x")


@pytest.fixture
def worker(monkeypatch):
    """Makes this process a worker, which is deaf to Ctrl-C and has streams of its own."""

    def begin():
        monkeypatch.setattr(multiprocessing, "parent_process", lambda: "the audit's own process")
        for name, number in (("stdout", 1), ("stderr", 2)):
            monkeypatch.setattr(sys, name, os.fdopen(number, "w", closefd=False))

    return begin


def test_an_interrupt_that_a_plugin_raises_in_a_worker_is_a_refusal(worker):
    worker()
    answer = call_plugin(lambda: fail(KeyboardInterrupt()), subject="attack 'x'")
    assert isinstance(answer, Refusal)
    assert answer.got.startswith("KeyboardInterrupt")


def test_a_working_folder_that_is_gone_is_left(tmp_path):
    """Every plug-in called after it was refused: the current folder could not be asked for."""
    before, gone = Path.cwd(), tmp_path / "gone"

    def vanish():
        gone.mkdir()
        os.chdir(gone)
        shutil.rmtree(gone)
        return "done"

    assert call_plugin(vanish, subject="attack 'x'") == "done"
    assert Path.cwd() == before


def test_what_a_plugin_prints_reaches_no_stdout_and_no_terminal_unescaped(worker, capfd):
    def shout():
        print("\x1b[2J clears", flush=True)
        os.write(1, b"\x1b]0;title\x07 below Python\n")
        print("x" * 10**6, file=sys.stderr)

    worker()
    call_plugin(shout, subject="attack 'x'")
    out, err = capfd.readouterr()
    assert out == ""
    assert err.startswith("attack 'x' printed:\n\\x1b[2J clears\n\\x1b]0;title\\x07 below Python\n")
    assert "further bytes are not shown" in err
    assert len(err) < 5000


def test_streams_that_a_plugin_closes_are_open_again(worker, capfd):
    def close():
        os.close(1)
        os.close(2)
        sys.stdout = None

    worker()
    call_plugin(close, subject="attack 'x'")
    print("still here", flush=True)
    os.write(2, b"here, too")
    assert capfd.readouterr() == ("still here\n", "here, too")


def test_warnings_logs_and_checks_of_others_are_set_back():
    def disturb():
        warnings.simplefilter("error")
        np.seterr(all="raise")
        logging.disable(logging.CRITICAL)
        torch.autograd.set_detect_anomaly(True)

    before = np.geterr()
    with warnings.catch_warnings():
        warnings.resetwarnings()
        call_plugin(disturb, subject="attack 'x'")
        assert not [one for one in warnings.filters if one[0] == "error"]
    assert np.geterr() == before
    assert logging.root.manager.disable == 0
    assert not torch.is_anomaly_enabled()


def test_global_state_is_set_back_and_the_change_is_noted(tmp_path):
    states = torch.get_rng_state(), np.random.get_state()[1].copy(), random.getstate()  # noqa: NPY002
    folder, threads = Path.cwd(), torch.get_num_threads()

    def disturb():
        torch.manual_seed(0)
        np.random.seed(0)  # noqa: NPY002
        random.seed(0)
        torch.set_num_threads(threads + 1)
        torch.set_default_dtype(torch.float64)
        torch.set_grad_enabled(False)
        torch.use_deterministic_algorithms(True)
        os.chdir(tmp_path)
        os.environ["GLASSHOUSE_LEFT_BEHIND"] = "1"
        return "done"

    with collect_notes() as notes:
        assert call_plugin(disturb, subject="attack 'x'") == "done"
    assert torch.equal(torch.get_rng_state(), states[0])
    assert np.array_equal(np.random.get_state()[1], states[1])  # noqa: NPY002
    assert random.getstate() == states[2]
    assert (torch.get_num_threads(), torch.get_default_dtype()) == (threads, torch.float32)
    assert torch.is_grad_enabled()
    assert not torch.are_deterministic_algorithms_enabled()
    assert Path.cwd() == folder
    assert "GLASSHOUSE_LEFT_BEHIND" not in os.environ
    assert "working folder" in notes[0]
    assert "global random generators" in notes[0]


def test_a_call_that_changes_nothing_leaves_no_note():
    with collect_notes() as notes:
        assert call_plugin(lambda: 3, subject="attack 'x'") == 3
    assert notes == []
