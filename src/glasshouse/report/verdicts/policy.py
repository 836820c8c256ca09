"""The outcome of every limit of the policy; a policy fails closed."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, final

from glasshouse.report import words
from glasshouse.results.cards import Limit
from glasshouse.results.records import Result

STATES: Final = {
    "broken": ("leaks", "is broken", "are broken"),
    "undecided": ("not shown", "is undecided", "are undecided"),
    "unmeasured": ("no power", "was not measured", "were not measured"),
    "holds": ("no leak found", "holds", "hold"),
}
"""State of a limit, the worst first: the verdict whose marker is shown; its verb for one limit and more."""
MARKS: Final = {state: verdict for state, (verdict, _, _) in STATES.items()}


@final
@dataclass(frozen=True, kw_only=True)
class Policy:
    """The policy's outcome over all scenarios.

    Attributes:
        state: ``broken``, ``not shown``, ``holds`` or ``none``.
        text: the outcome in a sentence.
        groups: (state, limits in that state), the worst state first.
    """

    state: str
    text: str
    groups: tuple[tuple[str, tuple[Limit, ...]], ...]


def policy(result: Result) -> Policy:
    """The outcome: broken if any limit is broken; holds only if every limit is shown to hold."""
    limits = result.limits or tuple(_of_an_older_result(result))
    counts = {state: tuple(one for one in limits if one.state == state) for state in STATES}
    groups = tuple((state, rows) for state, rows in counts.items() if rows)
    if not limits:
        return Policy(state="none", text="No limits were set.", groups=())
    parts = words.join_words([f"{len(rows)} {STATES[state][1 + (len(rows) > 1)]}" for state, rows in groups])
    tally = f"Of {words.count(len(limits), 'limits')}, {parts}."
    if counts["broken"]:
        return Policy(state="broken", text=f"Broken. {tally}", groups=groups)
    if counts["undecided"] or counts["unmeasured"]:
        return Policy(state="not shown", text=f"Not shown to hold. {tally}", groups=groups)
    return Policy(state="holds", text=f"Every limit holds. {tally}", groups=groups)


def _of_an_older_result(result: Result) -> Iterator[Limit]:
    """Limits of an old result without per-limit outcomes: broken ones are known, the rest are undecided."""
    for card in result.threats:
        for text in card.broken:
            yield Limit(scenario=card.scenario, subject=text, limit=0.0, state="broken", text=text)
        for name, limit in () if card.broken else card.limits.items():
            subject, reason = (
                f"gain in {name}",
                "this result does not judge single limits; run the audit again",
            )
            text = f"Gain in {name}, tolerated {limit:g}: {reason}."
            yield Limit(scenario=card.scenario, subject=subject, limit=limit, state="undecided", text=text)
