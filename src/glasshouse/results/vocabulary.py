"""The words for what an adversary sees, changes and is given: part of the core, in one place.

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
    "auxiliary": "similar public images",
    "labels": "the true labels",
    "batch_norm": "the batch-norm statistics of the private batch",
    "defense": "which defence is on",
    "challenge": "examples of which some are private",
    "cohorts": "who took part in each round",
}
