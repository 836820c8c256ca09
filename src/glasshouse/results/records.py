"""What an audit found, as data: ``result.json`` in and out. Needs no torch; the report reads only this.

The schema is documented in docs/result.md; ``FORMAT`` changes when a field's meaning would.
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Literal, TypeVar, final

import numpy as np
from numpy.typing import NDArray

from glasshouse.errors import BadFile, BadValue

FORMAT = 1

Verdict = Literal["leaks", "no leak found", "inconclusive", "no power"]
Settings = Mapping[str, Any]


@final
@dataclass(frozen=True, kw_only=True)
class Control:
    """Did the attack work where it must, and stay silent where it must?

    Attributes:
        positive, positive_low: gain in the easy setting, and the lower end of its interval.
        negative, negative_high: gain on an update unrelated to the victim, and the one-sided bound below it:
            the control fails when ``negative_low`` is above 0.
            None, all four: the attack made no claim there, and so did not pass.
        passed: both hold. setting: the easy setting in words. n: victims.
        metric: of the gains; it belongs to the attack, and need not be the metric of the finding beside it.
    """

    positive: float | None
    positive_low: float | None
    negative: float | None
    negative_low: float | None
    passed: bool
    setting: str
    n: int
    metric: str = ""


@final
@dataclass(frozen=True, kw_only=True)
class Finding:
    """A score with its uncertainty, baseline and verdict.

    Attributes:
        scenario: name of the scenario; cell: hash of the cell; axes: values of the axes in this cell.
        attack, metric, protocol: registered names. defenses: short descriptions in order, empty for none.
        value, low, high: the metric and its 95 % interval; higher_leaks: larger means more leaked.
        n: units behind it; unit: what one is ("victims", "images", "clients").
        baseline: name of the null adversary quoted; baseline_value: its score on the same victims.
        gain, gain_low, gain_high: improvement over the null, signed so that positive is leakage, paired.
        control: name → outcome, None where the attack has none.
        chosen: how the number was chosen ("4 restarts, lowest loss of the attack").
        given: grants that were used. seconds: attack time, all units. about: rounds and clients in words.
        chance: of a guess, where known. median: over victims, None for pooled metrics and shares.
    """

    scenario: str
    cell: str
    axes: Settings
    attack: str
    protocol: str
    defenses: tuple[str, ...]
    metric: str
    unit_of_value: str
    higher_leaks: bool
    value: float
    low: float
    high: float
    n: int
    unit: str
    baseline: str
    baseline_value: float
    gain: float
    gain_low: float
    gain_high: float
    control: Control | None
    verdict: Verdict
    chosen: str
    given: tuple[str, ...]
    seconds: float
    about: str
    chance: float | None = None
    median: float | None = None


@final
@dataclass(frozen=True, kw_only=True)
class Refused:
    """An attack, guard or metric that could not run in a cell, and why."""

    scenario: str
    cell: str
    axes: Settings
    defenses: tuple[str, ...]
    subject: str
    needs: str
    got: str
    fix: str


@final
@dataclass(frozen=True, kw_only=True)
class Utility:
    """Held-out accuracy after the cell's rounds, with its exact interval over the n examples.

    ``epsilon`` and ``delta``: the privacy guarantee of the cell's defences, None where there is none.
    """

    scenario: str
    cell: str
    axes: Settings
    defenses: tuple[str, ...]
    metric: str
    value: float
    low: float
    high: float
    n: int
    rounds: int
    epsilon: float | None = None
    delta: float | None = None


@final
@dataclass(frozen=True, kw_only=True)
class Contrast:
    """By how much one attack leaks more than another on the same victims, in one cell.

    ``difference``, ``low``, ``high``: in the metric's unit, with a 95 % interval over ``n`` pairs, signed so
    that positive means that ``attack`` leaks more than ``other``.
    """

    scenario: str
    cell: str
    axes: Settings
    defenses: tuple[str, ...]
    attack: str
    other: str
    metric: str
    unit_of_value: str
    difference: float
    low: float
    high: float
    n: int
    unit: str


@final
@dataclass(frozen=True, kw_only=True)
class Exhibit:
    """Something to show beside the numbers.

    Attributes:
        kind: ``pictures`` (originals beside reconstructions, in ``file``), ``lines``, ``histogram``,
            ``bars``, ``boxes`` or ``table``.
        data: by kind:
            ``lines``: {"x_label", "y_label", "x_log"?, "x_even"?: equal distances between the values of x,
            "series": [{"name", "x", "y", "low"?, "high"?, "null"?: bool, "of"?: number of the series that
            this one belongs to}]}; ``bars``: as lines, x are category names;
            ``histogram``: {"x_label", "series": [{"name", "values"}]};
            ``boxes``: {"y_label", "series": [{"name", "values"}]};
            ``table``: {"columns": [...], "rows": [[...], ...]};
            ``pictures``: {"columns": [names of the columns], "rows": [labels of the rows]}.
        file: for pictures, an .npz below the run directory: ``images`` (rows, columns, H, W, C) in [0, 1].
        private: columns of ``pictures`` that hold private data; blurred unless the user asks.
    """

    kind: Literal["pictures", "lines", "histogram", "bars", "boxes", "table"]
    scenario: str
    title: str
    caption: str
    data: Settings = field(default_factory=dict)
    file: str = ""
    private: tuple[str, ...] = ()


@final
@dataclass(frozen=True, kw_only=True)
class ThreatCard:
    """Who sees what, and what was given, for one scenario; all in words.

    ``limits``: metric name → largest tolerated gain, from ``[policy]``; ``broken``: the sentences of
    those that a finding exceeded.
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


@final
@dataclass(frozen=True, kw_only=True)
class Result:
    """Everything that one run reports."""

    suite: str
    threats: tuple[ThreatCard, ...] = ()
    findings: tuple[Finding, ...] = ()
    refusals: tuple[Refused, ...] = ()
    utility: tuple[Utility, ...] = ()
    exhibits: tuple[Exhibit, ...] = ()
    contrasts: tuple[Contrast, ...] = ()
    manifest: Settings = field(default_factory=dict)


T = TypeVar("T", "Finding", "Refused", "Utility", "Exhibit", "Contrast", "ThreatCard")


def write_result(result: Result, path: Path) -> None:
    """Write ``result.json``; NaN and infinity are refused.

    Raises:
        BadValue: a number is not finite.
    """
    try:
        text = json.dumps({"format": FORMAT, **asdict(result)}, allow_nan=False, indent=1, default=_plain)
    except ValueError as error:
        raise BadValue(
            "result.json",
            needs="finite numbers only",
            got=_where_not_finite(result),
            fix="report what is undefined as a refusal",
        ) from error
    path.write_text(text + "\n")


def read_result(path: Path) -> Result:
    """Read ``result.json``.

    Raises:
        BadFile: missing, not JSON, or of a newer format.
    """
    try:
        raw = json.loads(path.read_text())
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise BadFile(
            f"result '{path}'", needs="a readable result.json", got=str(error), fix="name a run directory"
        ) from error
    if not isinstance(raw, dict) or raw.get("format", 0) != FORMAT:
        raise BadFile(
            f"result '{path}'",
            needs=f"format {FORMAT}",
            got=f"format {raw.get('format') if isinstance(raw, dict) else type(raw).__name__}",
            fix="upgrade glasshouse, or run the audit again",
        )
    controls = [{**f, "control": Control(**f["control"]) if f["control"] else None} for f in raw["findings"]]
    return Result(
        suite=raw["suite"],
        threats=tuple(_load(ThreatCard, t) for t in raw["threats"]),
        findings=tuple(_load(Finding, f) for f in controls),
        refusals=tuple(_load(Refused, r) for r in raw["refusals"]),
        utility=tuple(_load(Utility, u) for u in raw["utility"]),
        exhibits=tuple(_load(Exhibit, e) for e in raw["exhibits"]),
        contrasts=tuple(_load(Contrast, c) for c in raw.get("contrasts", ())),
        manifest=raw["manifest"],
    )


def pictures(exhibit: Exhibit, run: Path) -> NDArray[np.float64]:
    """The images of a ``pictures`` exhibit, (rows, columns, H, W, C) in [0, 1]."""
    # Opened here: np.load leaves a file open that turns out to be no archive.
    with (run / exhibit.file).open("rb") as stream, np.load(stream) as archive:
        return np.asarray(archive["images"], dtype=np.float64)


def _load(kind: type[T], raw: Mapping[str, Any]) -> T:
    known: dict[str, Any] = {f.name: raw[f.name] for f in fields(kind) if f.name in raw}
    values: Any = {k: tuple(v) if isinstance(v, list) else v for k, v in known.items()}
    return kind(**values)


def _plain(value: object) -> object:
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"{type(value).__name__} in a result")


def _where_not_finite(result: Result) -> str:
    rows: Sequence[Finding | Utility | Contrast] = [*result.findings, *result.utility, *result.contrasts]
    for row in rows:
        for name, value in asdict(row).items():
            if isinstance(value, float) and not math.isfinite(value):
                return f"{type(row).__name__.lower()} of {row.scenario}: {name} = {value}"
    return "a number in an exhibit or the manifest"
