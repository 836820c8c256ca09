"""Ranges are read from the types of a dataclass's fields."""

import math
from dataclasses import dataclass
from typing import Annotated, Literal

import pytest

from glasshouse.errors import BadValue
from glasshouse.limits import Count, Fix, Natural, NotNegative, Positive, Share, check_ranges


@dataclass(frozen=True, kw_only=True)
class Search:
    steps: Count = 1
    restarts: Natural = 0
    rate: Positive = 0.1
    noise: NotNegative = 0.0
    momentum: Share = 0.0
    kind: Literal["adam", "sgd"] = "adam"
    free: str = ""
    bound: Annotated[Positive, Fix("try 2")] | None = None


def test_the_ends_of_the_ranges_are_inside():
    check_ranges(Search(), "a search")
    check_ranges(Search(steps=2**31 - 1, rate=1e30, momentum=0.999, kind="sgd", free="x"), "a search")


@pytest.mark.parametrize(
    ("wrong", "needs"),
    [
        ({"steps": 0}, "steps >= 1"),
        ({"steps": 2**31}, "steps <= 2147483647"),
        ({"restarts": -1}, "restarts >= 0"),
        ({"rate": 0.0}, "rate > 0"),
        ({"rate": math.inf}, "rate <= 1e+30"),
        ({"noise": math.nan}, "noise >= 0"),
        ({"momentum": 1.0}, "momentum < 1"),
        ({"kind": "lbfgs"}, "kind one of adam, sgd"),
        ({"bound": 0.0}, "bound > 0"),
    ],
)
def test_a_value_outside_names_its_field(wrong, needs):
    with pytest.raises(BadValue) as caught:
        check_ranges(Search(**wrong), "a search")
    assert (caught.value.subject, caught.value.needs) == ("a search", needs)
    assert caught.value.got.startswith(f"{next(iter(wrong))} = ")
    assert caught.value.fix == ("try 2" if "bound" in wrong else "correct it")
