"""Descriptions of threats, limits, attacks and metrics in a result."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, final

__all__ = ["AttackCard", "Limit", "MetricCard", "ThreatCard"]


@final
@dataclass(frozen=True, kw_only=True)
class ThreatCard:
    """The threat model of one scenario in words: who sees what, and which side knowledge was granted.

    ``limits``: metric → largest tolerated gain; ``broken``: the sentences on broken limits (:class:`Limit`).
    ``setup``: the federation in a few plain words; ``defenses``: registered name → description, of those in
    use; ``advice``: what to try first, a defence's name behind it; ``things``: what examples are
    ("pictures"); empty: not said.
    """

    scenario: str
    summary: str
    federation: str
    adversary: str
    sees: tuple[str, ...]
    changes: tuple[str, ...]
    given: tuple[str, ...]
    data: str
    data_public: bool
    model: str
    structural: bool = False
    limits: Mapping[str, float] = field(default_factory=dict)
    broken: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    setup: str = ""
    defenses: Mapping[str, str] = field(default_factory=dict)
    advice: str = ""
    things: str = ""


@final
@dataclass(frozen=True, kw_only=True)
class Limit:
    """One limit of a policy, and whether the run shows that it holds.

    Attributes:
        scenario: whose policy.
        subject: what is limited, in words ("gain in psnr of dlg under clip 4").
        limit: the tolerated number.
        state: ``holds`` (the whole interval is within the limit and the controls passed),
            ``broken``, ``undecided`` (the interval crosses the limit, or no power) or ``unmeasured``.
        text: one sentence for the report.
    """

    scenario: str
    subject: str
    limit: float
    state: Literal["holds", "broken", "undecided", "unmeasured"]
    text: str


@final
@dataclass(frozen=True, kw_only=True)
class AttackCard:
    """The description of an attack, as shown in the report.

    Attributes:
        label: its name in this run.
        name: as registered.
        title: for headings ("Inverting Gradients").
        summary: one line.
        source: the paper.
    """

    label: str
    name: str
    title: str
    summary: str
    source: str = ""


@final
@dataclass(frozen=True, kw_only=True)
class MetricCard:
    """The description of a metric: what the report needs to show its values.

    Attributes:
        name: as registered.
        label: for tables and axes.
        sentence: what the attack did, with one ``{}`` for the value ("rebuilt private images at PSNR {}").
        explanation: one line for a reader new to the metric.
        display: ``rate`` as a percentage, ``level`` in decibels, ``plain`` unchanged.
        low: smallest possible value; None: unbounded.
        high: largest possible value; None: unbounded.
        higher_leaks: larger values mean more leakage.
        unit: ``dB``, ``share`` or empty.
        severity: ``images``, ``membership``, ``descriptions``, ``labels`` or ``other``: the kind that leaks;
            the report sorts by it.
        order: rank among metrics of one severity; the smallest is quoted first.
        note: caveats for comparing the value with a paper's.
        private: the metric is about private data; where False, it is never a headline.
        headline: what came out, with one ``{}`` for "8 of 8" or "88 % of the" and what examples are
            ("{} rebuilt recognisably"); empty: ``sentence`` serves.
        landmarks: (value, its meaning, an example as a ``data:`` URL of a PNG), the worst first.
    """

    name: str
    label: str
    sentence: str
    explanation: str
    display: Literal["rate", "level", "plain"]
    low: float | None
    high: float | None
    higher_leaks: bool
    unit: str
    severity: Literal["images", "membership", "descriptions", "labels", "other"] = "other"
    order: int = 1000
    note: str = ""
    private: bool = True
    headline: str = ""
    landmarks: tuple[tuple[float, str, str], ...] = ()
