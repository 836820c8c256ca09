"""How threats, limits, attacks and metrics describe themselves in a result."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, final

__all__ = ["AttackCard", "Limit", "MetricCard", "ThreatCard"]


@final
@dataclass(frozen=True, kw_only=True)
class ThreatCard:
    """Who sees what, and what was given, for one scenario; all in words.

    ``limits``: metric → largest tolerated gain; ``broken``: sentences of those broken (see :class:`Limit`).
    ``setup``: the federation in a few plain words; ``defenses``: registered name → what it does, of those in
    use; ``advice``: a defence to try first, and what it does.
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


@final
@dataclass(frozen=True, kw_only=True)
class Limit:
    """One limit of a policy, and what the run can say of it.

    Attributes:
        scenario: whose policy.
        subject: what is limited, in words ("gain in psnr of dlg under clip 4").
        limit: the tolerated number.
        state: ``holds`` (the whole interval is within it and the controls passed),
            ``broken``, ``undecided`` (the interval crosses it, or there was no power) or ``unmeasured``.
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
    """How an attack describes itself: what the report shows of it.

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
    """How a metric describes itself: what the report needs to show a number of it.

    Attributes:
        name: as registered.
        label: for tables and axes.
        sentence: what the attack did, with one ``{}`` for the value ("rebuilt private images at PSNR {}").
        explanation: one line for a reader who never met it.
        display: ``rate`` as a percentage, ``level`` in decibels, ``plain`` as it is.
        low: what the metric can be at all; None: unbounded.
        high: what the metric can be at all; None: unbounded.
        higher_leaks: larger means that more came out.
        unit: ``dB``, ``share`` or empty.
        severity: ``images``, ``membership``, ``labels`` or ``other``: what kind of private thing came out;
            the report orders by it.
        order: among metrics of one severity, small ones are quoted first.
        note: what a reader must know who compares the number with a paper's.
        private: the number is about private data; where False, it is never a headline.
        landmarks: (number, its meaning, a picture of it as a ``data:`` address of a PNG), the worst first.
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
    severity: Literal["images", "membership", "labels", "other"] = "other"
    order: int = 1000
    note: str = ""
    private: bool = True
    landmarks: tuple[tuple[float, str, str], ...] = ()
