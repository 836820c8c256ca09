import pytest

from glasshouse.progress import listen, stage, track


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
