"""Plain-language names for what an adversary sees, changes and is granted, and for the null adversaries.

Attacks and metrics are not listed here: they describe themselves (:class:`AttackCard`, :class:`MetricCard`).
"""

from collections.abc import Mapping
from typing import Final

SEES: Final[Mapping[str, str]] = {
    "broadcast": "what the server sends",
    "update": "every client's own update",
    "aggregate": "the sum of the cohort's updates",
    "own": "the server's own model",
}
CHANGES: Final[Mapping[str, str]] = {
    "parameters": "parameter values",
    "architecture": "the architecture (a client can see that)",
    "addressing": "what single clients are sent",
}
GRANTS: Final[Mapping[str, str]] = {
    "auxiliary": "similar public examples",
    "labels": "the true labels",
    "batch_norm": "the batch-norm statistics of the private batch",
    "defense": "which defence is on",
    "challenge": "examples of which some are private",
    "cohorts": "who took part in each round",
}
NULLS: Final[Mapping[str, str]] = {
    "chance": "random guessing",
    "coin that knows the prior and how many were called": "random guessing that knows how many clients are "
    "positive",
    "guess among the clients or classes": "random guessing among the clients or classes",
    "guess among the clients": "random guessing among the clients",
    "mean auxiliary image": "the average of similar public images",
    "random auxiliary image": "a similar public image drawn at random",
    "mean image of a guessed class": "the average public image of a guessed class",
    "grey image": "a plain grey image",
    "labels drawn from auxiliary data": "labels drawn at random from similar public data",
    "random draw of the attack's generator": "an image drawn at random from the attack's own generator",
    "mean of the public images of the private domain": "the average of the public images of the same kind",
}
"""Null adversaries, which guess without the update, in the reader's words."""
WITHOUT_UPLOADS: Final = "the same attack without uploads"
"""The null adversary that is no guess: the attack on what the server knows by itself."""
STRONGEST: Final = "the strongest null adversary"
"""Of each federation, where it is not the same one in all of them."""
