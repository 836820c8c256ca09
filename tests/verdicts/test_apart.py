"""What a metric of another package does to the process that scores ends with its own numbers."""

import os
import pickle
import signal
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.verdicts.audits import normal
from tests.verdicts.bench import bench

from glasshouse.audit.scoring import cell, finding
from glasshouse.audit.scoring.judging import verdict
from glasshouse.audit.scoring.judging.apart import apart
from glasshouse.metrics.base import Metric, Wording
from glasshouse.registry import Card
from glasshouse.results.records import Finding
from glasshouse.wire import Refusal

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="elsewhere no process is forked")


def silence(evidence):
    return verdict.Decision(verdict="no leak found")


class NoError(BaseException):
    """What no handler of errors expects."""


@dataclass(frozen=True, kw_only=True)
class Hostile(Metric):
    """Scores well, after it did something to the process."""

    card = Card(summary="hostile")
    wording = Wording(label="hostile", sentence="{}", explanation="x", severity="images", order=1)
    how: str

    def score(self, claimed, truth, *, context):
        _DO[self.how]()
        return -((claimed - truth) ** 2).flatten(1).mean(1).double().numpy()


def replace_the_judge():
    verdict.decide = finding.decide = silence


def replace_torch_and_numpy():
    torch.Tensor.mean = lambda self, *shape, **options: torch.zeros(())
    np.asarray = lambda *given, **options: np.zeros(1)


def raise_no_error():
    raise NoError


_DO = {
    "replaces the judge": replace_the_judge,
    "replaces torch and NumPy": replace_torch_and_numpy,
    "raises what is no error": raise_no_error,
    "ends its process": lambda: os._exit(0),
    "is killed": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "does nothing": lambda: None,
}


def scores(monkeypatch, how: str = "") -> cell.AttackScores:
    """An audit whose victims come out, by two honest metrics, and by a hostile one before them."""
    random = np.random.default_rng(0)
    one = bench(12, random, metrics=(("mse",) if how else ()) + ("psnr", "identification"), margin=0.3)
    one.claims = one.private.inputs + normal(12, random, 0.05)
    load = cell.load
    with monkeypatch.context() as patch:
        patch.setattr(
            cell, "load", lambda kind, name: (lambda: Hostile(how=how)) if name == "mse" else load(kind, name)
        )
        patch.setattr(cell, "create", lambda made, arguments: made(**arguments))
        return one.scores()


@pytest.mark.parametrize("how", _DO)
def test_a_hostile_metric_changes_no_number_and_no_verdict_of_others(how, monkeypatch):
    alone = scores(monkeypatch)
    beside = scores(monkeypatch, how)
    others = [one for one in beside.findings if one.metric != "mse"]
    assert [one.value for one in others] == [one.value for one in alone.findings]
    assert others[0].verdict == alone.findings[0].verdict == "leaks"
    assert all(one.verdict in ("leaks", "label leak") for one in others)
    if how == "does nothing":
        assert beside.refusals == ()
    if how in ("raises what is no error", "ends its process", "is killed"):
        assert [one.subject for one in beside.refusals] == ["metric 'mse' of attack 'linear_input'"]
        assert [one.metric for one in beside.findings] == ["psnr", "identification"]


def test_what_comes_back_is_records_arrays_and_numbers():
    answer = (
        [np.arange(3.0), np.float64(2), frozenset({"a"})],
        Refusal(subject="s", needs="n", got="g", fix="f"),
    )
    (array, number, names), refusal = apart(lambda: answer, subject="metric 'x'")
    assert array.tolist() == [0, 1, 2]
    assert (number, names, refusal) == (2.0, frozenset({"a"}), answer[1])


class Code:
    """Would run something where it is read."""

    def __init__(self, function, *arguments):
        self.call = function, arguments

    def __reduce__(self):
        return self.call


@pytest.mark.parametrize("code", [Code(os.system, "true"), Code(eval, "1"), Code(getattr, Finding, "mro")])
def test_code_does_not_come_back(code):
    answer = apart(lambda: code, subject="metric 'x'")
    assert isinstance(answer, Refusal)
    assert "something else" in answer.got


def test_code_of_this_package_that_is_no_record_does_not_come_back(monkeypatch):
    """A name with dots leads from one of our modules to any other."""
    packed = b"\x80\x04\x8c\x17glasshouse.audit.sealed\x8c\tos.system\x93\x8c\x04true\x85R."
    monkeypatch.setattr(pickle, "dumps", lambda answer: packed)
    answer = apart(lambda: 1, subject="metric 'x'")
    assert isinstance(answer, Refusal)
    assert "os.system" in answer.got


@pytest.mark.parametrize("name", ["gains\nvalue_of", "cell\nPath", "cell\nscore_cell"])
def test_functions_of_this_package_and_types_of_others_do_not_come_back(name, monkeypatch):
    """Neither a function where it is defined, nor a type that one of our modules merely imports."""
    packed = f"cglasshouse.audit.scoring.{name}\n.".encode()
    monkeypatch.setattr(pickle, "dumps", lambda answer: packed)
    answer = apart(lambda: 1, subject="metric 'x'")
    assert isinstance(answer, Refusal)
    assert name.partition("\n")[2] in answer.got


def test_a_process_that_is_left_running_ends_with_the_call():
    def leave():
        child = os.fork()
        if child == 0:
            signal.pause()
        return child

    child = apart(leave, subject="metric 'x'")
    assert any(is_gone(child) or time.sleep(0.02) for _ in range(200))


def is_gone(process: int) -> bool:
    """Ended, whether or not somebody has waited for it."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True
