import io
import time

import pytest
from rich.console import Console

from glasshouse.cli.parts.progress import bars, lines
from glasshouse.progress import Counters, forecast, listen, stage, track


class Heard:
    """A listener that writes down what it hears."""

    def __init__(self):
        self.lines = []

    def begin(self, label, total):
        self.lines.append(("begin", label, total))
        heard = self

        class Bar:
            def advance(self):
                heard.lines.append(("advance", label))

            def expect(self, total):
                heard.lines.append(("expect", label, total))

            def close(self):
                heard.lines.append(("close", label))

        return Bar()


def test_every_step_is_heard_after_it_is_done():
    heard = Heard()
    with listen(heard):
        for _ in track(range(2), "rounds"):
            heard.lines.append("work")
    step = ["work", ("advance", "rounds")]
    assert heard.lines == [("begin", "rounds", 2), *step, *step, ("close", "rounds")]


def test_a_failure_closes_the_bar():
    heard = Heard()
    with listen(heard), pytest.raises(RuntimeError), stage("training"):
        raise RuntimeError
    assert heard.lines == [("begin", "training", None), ("close", "training")]


def test_length_is_not_guessed_and_silence_is_the_default():
    heard = Heard()
    with listen(heard):
        assert list(track(iter("ab"), "letters")) == ["a", "b"]
        assert list(track(iter("ab"), "letters", total=2)) == ["a", "b"]
    assert list(track("c", "silent")) == ["c"]
    assert [line for line in heard.lines if line[0] == "begin"] == [
        ("begin", "letters", None),
        ("begin", "letters", 2),
    ]


def test_several_kinds_of_work_are_counted_while_more_becomes_known():
    heard = Heard()
    with listen(heard):
        counters = Counters()
        counters.expect("federations", 2)
        counters.advance("federations")
        counters.expect("attacks", 3)
        counters.expect("attacks")
        assert counters.left("federations") == 1
        assert counters.left("controls") == 0
        assert counters.close() == {"federations": 1}
    assert heard.lines == [
        ("begin", "federations", 2),
        ("advance", "federations"),
        ("begin", "attacks", 3),
        ("expect", "attacks", 4),
        ("close", "federations"),
        ("close", "attacks"),
    ]


def test_without_a_terminal_a_line_says_how_far_everything_is():
    said = io.StringIO()
    with lines(said, every=0.05):
        for _ in track(range(3), "attacks"):
            with stage("training"):
                time.sleep(0.15)
    words = said.getvalue().splitlines()
    assert "0 min: attacks 0 of 3, training" in words
    assert "0 min: attacks 2 of 3, training" in words
    assert len(words) < 3 * 0.15 / 0.05 * 3


def test_the_time_that_is_left_runs_down():
    said = io.StringIO()
    with lines(said, every=0.1):
        for step in track(range(4), "attacks"):
            if step == 0:
                forecast(0.25)
            time.sleep(0.15)
    words = said.getvalue().splitlines()
    assert words[0] == "0 min: attacks 0 of 4; less than 10 s left"
    assert words[-1].endswith("longer than was foreseen")


def test_a_short_run_without_a_terminal_says_nothing(capsys):
    with bars(Console(file=io.StringIO())):
        list(track(range(3), "attacks"))
    assert capsys.readouterr().err == ""


def test_a_terminal_shows_bars_that_grow_and_go():
    screen = io.StringIO()
    with bars(Console(file=screen, force_terminal=True, width=100)):
        counters = Counters()
        counters.expect("attacks", 2)
        counters.expect("attacks", 5)
        counters.advance("attacks")
        forecast(100)
        time.sleep(0.3)
        counters.close()
    assert "1/7" in screen.getvalue()
    assert "about 2 min left" in screen.getvalue()
