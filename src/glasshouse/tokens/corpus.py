"""A small built-in corpus: messages to a medical practice, a bank, a colleague or a neighbour.

Every sentence is generated from a pattern and words for its slots. The corpus is built in, so that a
federation of language models can be audited without files or downloads. Names and figures are invented.
"""

import re
from collections.abc import Mapping
from functools import cache
from itertools import product
from typing import Final

import numpy as np

_SLOTS: Final[Mapping[str, str]] = {
    "person": "anna ben carla david emma felix grace henry irene jonas kira leo maria nils olga paul tara",
    "day": "monday tuesday wednesday thursday friday saturday sunday today tomorrow tonight",
    "part": "knee shoulder back wrist hip ankle neck elbow stomach throat",
    "drug": "ibuprofen insulin aspirin penicillin cortisone morphine warfarin metformin",
    "illness": "asthma diabetes migraine pneumonia anaemia arthritis depression eczema",
    "number": "two three four five six seven eight nine ten twelve twenty forty sixty",
    "money": "rent loan mortgage salary pension deposit refund invoice",
    "shop": "bakery pharmacy garage library market hotel station airport",
    "place": "berlin paris madrid vienna oslo lisbon dublin prague athens zurich",
    "task": "report budget contract schedule proposal survey handbook audit",
    "thing": "kitchen window heater roof door garden fence cellar washing dishwasher",
    "feeling": "tired worried happy angry dizzy calm afraid nervous",
}
TOPICS: Final[Mapping[str, tuple[str, ...]]] = {
    "health": (
        "my {part} has hurt since {day} and the {drug} does not help .",
        "doctor , {person} was told on {day} that it is {illness} .",
        "please send {person} a new prescription for {drug} by {day} .",
        "i feel {feeling} after taking {number} tablets of {drug} .",
        "{person} had {illness} as a child and takes {drug} twice a day .",
        "the scan of my {part} showed nothing , but i am still {feeling} .",
    ),
    "money": (
        "the {money} of {number} thousand was not paid on {day} .",
        "{person} asked whether the {money} can wait until {day} .",
        "i cannot pay the {money} this month , since {person} lost the job in {place} .",
        "please move {number} hundred to the account of {person} in {place} .",
        "why was my card refused at the {shop} in {place} on {day} ?",
        "{person} signed for a {money} of {number} thousand without telling me .",
    ),
    "work": (
        "{person} has not finished the {task} and leaves for {place} on {day} .",
        "do not tell {person} that the {task} was given to {person} .",
        "the {task} for {place} needs {number} more pages by {day} .",
        "we will let {number} people go in {place} , keep it quiet until {day} .",
        "{person} is {feeling} about the {task} that we sent on {day} .",
        "can you book {number} seats from the {shop} in {place} for {day} ?",
    ),
    "home": (
        "the {thing} is broken again and nobody comes before {day} .",
        "{person} will be alone at home on {day} , the key is behind the {thing} .",
        "we are in {place} until {day} , please water the plants near the {thing} .",
        "{person} and {person} argued about the {thing} and now {person} is {feeling} .",
        "the neighbours heard {person} at {number} and were {feeling} .",
        "meet me at the {shop} at {number} , and bring what {person} left in the {thing} .",
    ),
}
_SLOT: Final = re.compile(r"{(\w+)}")
_PER_PATTERN: Final = 160


@cache
def words() -> tuple[str, ...]:
    """All distinct words of the corpus, sorted."""
    fixed = {w for patterns in TOPICS.values() for p in patterns for w in _SLOT.sub("", p).split()}
    return tuple(sorted(fixed | {w for filling in _SLOTS.values() for w in filling.split()}))


def sentences() -> dict[str, tuple[str, ...]]:
    """The distinct sentences of each topic, in a fixed pseudo-random order; the same on every machine."""
    draws = np.random.default_rng(170)
    by_topic: dict[str, tuple[str, ...]] = {}
    for topic, patterns in TOPICS.items():
        lines: list[str] = []
        for pattern in patterns:
            every = list(product(*(_SLOTS[slot].split() for slot in _SLOT.findall(pattern))))
            chosen = draws.choice(len(every), size=min(_PER_PATTERN, len(every)), replace=False)
            lines += [_SLOT.sub("{}", pattern).format(*every[i]) for i in chosen]
        by_topic[topic] = tuple(lines[i] for i in draws.permutation(len(lines)))
    return by_topic
