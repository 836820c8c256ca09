"""The annex for a data-protection impact assessment: what was tested, what came out, what was not tested.

One structure, written as HTML and as Markdown. Its words for guarantees are those of NIST SP 800-226
("Guidelines for Evaluating Differential Privacy Guarantees"), its names of attacks those of EDPB Opinion
28/2024, its requirements those of OWASP AISVS 1.0, chapter 11.2. It says "evidence for", never "compliant".
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple, final

from glasshouse.outside.text import markdown as escape
from glasshouse.report import html, numbers, tables, words
from glasshouse.report.first_screen.leaks import Leak, leaks
from glasshouse.report.first_screen.matrix import (
    DESCRIPTIONS,
    GROUP,
    LABELS,
    OTHERS,
    PEOPLE,
    THREATS,
    Cell,
    Matrix,
    column,
    matrix,
)
from glasshouse.report.markdown import table as markdown_table
from glasshouse.report.readings import EXAMPLES, ORDER, Reading, Readings, Threat, read
from glasshouse.report.verdicts.answer import facts
from glasshouse.report.verdicts.policy import policy
from glasshouse.results.cards import ThreatCard
from glasshouse.results.records import Finding, Result, Utility
from glasshouse.results.rows import grouped

UNTESTED: Final = "NOT TESTED"
ATTACKS: Final[Mapping[str, str]] = {
    **dict.fromkeys((*EXAMPLES, OTHERS), "reconstruction, model inversion, exfiltration"),
    DESCRIPTIONS: "model inversion (of features)",
    LABELS: "attribute inference",
    PEOPLE: "membership inference",
    GROUP: "attribute inference",
}
"""Kind of private data → the attack in the words of EDPB Opinion 28/2024."""
UNITS: Final = {
    "example": ("one example", "datasets that differ by adding or removing one example"),
    "update": ("one client's update", "the federation with a client's update, or with zeros in its place"),
}
"""Unit of a bound → NIST's "unit of privacy" and "neighboring datasets"."""
HEADS: Final[Mapping[str, Sequence[str]]] = {
    "scenarios": ("scenario", "federation, adversary, what it sees and is given", "data and network"),
    "leaks": ("scenario and setting", "what came out, and whose", "number [95 %]", "tried, and next"),
    "guarantees": (
        "scenario, setting", "ε over this run (privacy loss parameter)", "δ",
        "unit of privacy; neighboring datasets", "utility",
    ),
    "requirements": ("requirement of OWASP AISVS 1.0", "evidence"),
}  # fmt: skip
"""Columns of the tables."""
MOST: Final = 6
"""Rows of what could not run; the report has all."""
LIMITS: Final = (
    "Findings hold for the attacks, settings, network and data named here, and bound no attack beside them.",
    "An attack that came to nothing is no proof of safety. A guarantee (ε, δ) that is in force covers all.",
    "The finished model is not attacked here: membership and extraction of released models need other tools.",
)
OPEN: Final = (
    "Whose data these are, and how the tested data differ from those used later (people, smallest client).",
    "Whether the federation that runs has the settings tested: who checks it, and when this is repeated.",
    "How likely each adversary is, and what binds it; who else receives updates, logs and the model.",
    "What a leak would mean for the persons concerned, and whether what is left is acceptable.",
    "Legal basis, retention, processors, transfers, the rights of data subjects.",
)
"""Questions that no measurement answers; listed, so that nobody takes them for answered."""


class Guarantee(NamedTuple):
    """A setting's differential-privacy guarantee in the words of NIST SP 800-226."""

    setting: str
    epsilon: str
    delta: str
    unit: str
    utility: str


class Requirement(NamedTuple):
    """A requirement of a standard, and what this run is evidence of."""

    text: str
    evidence: str


@final
@dataclass(frozen=True, kw_only=True)
class Annex:
    """The content of the annex.

    Attributes:
        title: name of the suite.
        facts: (name, value): who ran it, when, with what.
        scenarios: (scenario, federation and adversary, data and network).
        matrix: threats against kinds of private data; the report shows the same.
        leaks: (scenario and setting, what came out, number, measures): the report's cards.
        refusals: what could not run, and why; at most :data:`MOST`.
        guarantees: of settings with a guarantee.
        unguarded: how many settings have none, in a sentence.
        requirements: of standards.
        policy: (state, sentence) of every limit, and a summary before them.
        residual: sentences by rule.
    """

    title: str
    facts: Sequence[tuple[str, str]]
    scenarios: Sequence[tuple[str, str, str]]
    matrix: Matrix
    leaks: Sequence[tuple[str, str, str, str]]
    refusals: Sequence[str]
    guarantees: Sequence[Guarantee]
    unguarded: str
    requirements: Sequence[Requirement]
    policy: Sequence[tuple[str, str]]
    residual: Sequence[str]


def write_annex(result: Result, run: Path) -> list[Path]:
    """Write ``annex.html`` and ``annex.md`` into the run's folder.

    Raises:
        BadValue: the result holds a non-finite number.
        BadFile: the folder cannot be written.
        DiskFull: not enough disk space.
    """
    content = annex(result)
    cells = [(row.threat, [_text(c) for c in row.cells]) for row in content.matrix.rows]
    page = html.page(
        "annex.html", a=content, cells=cells, attacks=ATTACKS, limits=LIMITS, heads=HEADS, open=OPEN
    )
    return [html.save(page, run / "annex.html"), html.save(annex_markdown(content, cells), run / "annex.md")]


def annex(result: Result) -> Annex:
    """The annex of a result. Every number is the result's own; nothing is rated here."""
    readings = read(result)
    table, settings = matrix(readings), _settings(readings)
    outcome = policy(result)
    limits = [(state, one.text) for state, group in outcome.groups for one in group if state != "holds"]
    return Annex(
        title=result.suite,
        facts=[*facts(result), *_program(result)],
        scenarios=[_scenario(card) for card in result.threats],
        matrix=table,
        leaks=[_leak(leak) for leak in leaks(readings)],
        refusals=_refusals(result),
        guarantees=[guarantee for guarantee in settings.values() if guarantee is not None],
        unguarded=_unguarded(settings),
        requirements=_requirements(settings, readings.deciding),
        policy=[("", outcome.text), *limits],
        residual=[table.whole_coverage, *_residual(readings.deciding, readings.threats)],
    )


def _text(cell: Cell) -> str:
    """A cell of the matrix: its state, the number of its worst finding, and how many tests say so."""
    if cell.worst is None:
        return UNTESTED
    return f"{cell.text} ({cell.detail}): {cell.worst.score}, {cell.worst.guesser} {cell.worst.baseline}"


def _number(r: Reading) -> str:
    return f"{r.attack}: {r.score}, {r.guesser} {r.baseline}, n = {r.finding.n}"


def _leak(leak: Leak) -> tuple[str, str, str, str]:
    out = f"{leak.title} (severity {leak.severity} of 4: {leak.severe}). {leak.whose}"
    measures = f"{leak.action} {leak.advice}"
    return f"{leak.scenario}, {leak.setting}", out, _number(leak.reading), measures


def _refusals(result: Result) -> list[str]:
    texts = list(dict.fromkeys(f"{r.subject}: {r.got}" for r in result.refusals))
    rest = [f"{len(texts) - MOST} more, in the report"] if len(texts) > MOST else []
    return texts[:MOST] + rest


def _scenario(card: ThreatCard) -> tuple[str, str, str]:
    seen = [*card.sees, *(f"it may change {part}" for part in card.changes)]
    given = words.grants(card.given)
    sees = "; ".join([*seen, *([f"it is given {given}"] if given else [])])
    return (
        card.scenario,
        f"{card.federation}. {card.adversary}: {sees}",
        f"{card.data}; network: {card.model}",
    )


def _settings(readings: Readings) -> dict[str, Guarantee | None]:
    """Every setting of the run, and its guarantee: from what covers a finding, else from its utility."""
    settings: dict[str, Guarantee | None] = {}
    findings = [r.finding for r in readings.every]
    utility = {_name(row): row for row in readings.result.utility}
    bounds = {_name(f): f.bound for f in findings if f.bound is not None}
    for name in dict.fromkeys([*map(_name, findings), *utility]):
        # A bound names the unit that it protects; a row of utility knows ε and δ alone.
        bound, row = bounds.get(name), utility.get(name)
        source = bound if bound is not None else row
        epsilon, delta = (source.epsilon, source.delta) if source is not None else (None, None)
        settings[name] = None
        if epsilon is not None:
            settings[name] = Guarantee(
                setting=name,
                epsilon=f"{epsilon:.3g}",
                delta=f"{delta:g}" if delta is not None else "not stated",
                unit="; ".join(UNITS[bound.unit]) if bound else "not stated",
                utility=f"{row.metric} {numbers.percent(row.value)} %" if row else "not measured",
            )
    return settings


def _name(row: Finding | Utility) -> str:
    return f"{row.scenario}, {tables.setting(row)}"


def _unguarded(settings: Mapping[str, Guarantee | None]) -> str:
    without = sum(guarantee is None for guarantee in settings.values())
    return f"Without a guarantee: {without} of {words.count(len(settings), 'settings')}." if settings else ""


def _requirements(settings: Mapping[str, Guarantee | None], deciding: Sequence[Reading]) -> list[Requirement]:
    """OWASP AISVS 1.0, C11.2.4 and C11.2.5, and which findings answer them."""
    epsilons = dict.fromkeys(one.epsilon for one in settings.values() if one is not None)
    private = [f"settings with ε = {', '.join(epsilons)}"] if epsilons else []
    without = sum(guarantee is None for guarantee in settings.values())
    rest = [f"{words.count(without, 'settings')} without a guarantee"] if without else []
    members = [r for r in deciding if r.card.severity == "membership"]
    worst = min(members, key=lambda r: ORDER.index(r.finding.verdict), default=None)
    simulated = UNTESTED
    if worst is not None:
        count = words.count(len(members), "simulations")
        simulated = f"{count}, the worst: {worst.finding.verdict}, {_number(worst)}"
    return [
        Requirement(
            "C11.2.4 (level 2): training on sensitive datasets employs differentially-private optimization",
            words.join_words([*private, *rest]) or UNTESTED,
        ),
        Requirement(
            "C11.2.5 (level 3): membership-inference attack simulations demonstrate that attack accuracy "
            "does not exceed random guessing on evaluated data",
            simulated,
        ),
    ]


def _residual(deciding: Sequence[Reading], threats: Mapping[str, Threat]) -> Iterable[str]:
    """What remains, by rule: a sentence per verdict, in the order of verdicts; ``threats``: by scenario."""
    groups = grouped(deciding, lambda r: r.finding.verdict)
    for verdict, group in sorted(groups.items(), key=lambda item: ORDER.index(item[0])):
        about = {column(r.card.severity, threats.get(r.finding.scenario)) for r in group}
        named = words.join_words([kind for kind in ATTACKS if kind in about])
        tested = {r.finding.scenario for r in group} & threats.keys()
        adversaries = {threats[scenario].who for scenario in tested}
        who = words.join_words([threat for threat in THREATS if threat in adversaries])
        settings = words.count(len({(r.finding.scenario, r.finding.cell) for r in group}), "settings")
        by = f" by {who}" if who else ""
        yield f"'{verdict}': {words.count(len(group), 'findings')} about {named}{by}, in {settings}."


def _program(result: Result) -> list[tuple[str, str]]:
    manifest = result.manifest
    rows = [("Commit", manifest.get("commit", "")), ("Device", manifest.get("device", ""))]
    seeds = manifest.get("seeds", {})
    if isinstance(seeds, Mapping):
        rows.append(
            ("Seeds", "; ".join(f"{name}: {words.plain_value(value)}" for name, value in seeds.items()))
        )
    return [(name, str(text)) for name, text in rows if text]


def annex_markdown(a: Annex, cells: Sequence[tuple[str, Sequence[str]]]) -> str:
    """The annex as Markdown; all text from outside is escaped."""
    parts = [f"# Annex: what the federation of “{escape(a.title)}” gives away"]
    parts.append("\n".join(f"- {escape(name)}: {escape(value)}" for name, value in a.facts))
    sections = {
        "1. What was tested": _table(HEADS["scenarios"], a.scenarios),
        "2. Threats, kinds of private data, verdicts": f"{a.matrix.whole_coverage}\n\n{_matrix(a, cells)}",
        "3. Leaks, and measures": _table(HEADS["leaks"], a.leaks),
        "4. Guarantees (NIST SP 800-226)": "\n\n".join(
            part for part in (_table(HEADS["guarantees"], a.guarantees), escape(a.unguarded)) if part
        ),
        "5. Requirements that this is evidence for": _table(HEADS["requirements"], a.requirements),
        "6. Limits that were set": _bullets(
            f"{state}: {text}" if state else text for state, text in a.policy
        ),
        "7. What remains": _bullets([*a.residual, *(f"Could not run: {text}" for text in a.refusals)]),
        "8. Limits of this annex": _bullets(LIMITS),
        "9. What the assessment must still answer": _bullets(OPEN),
    }
    parts += [f"## {title}\n\n{body or 'None.'}" for title, body in sections.items()]
    return "\n\n".join(parts) + "\n"


def _bullets(texts: Iterable[str]) -> str:
    return "\n".join(f"- {escape(text)}" for text in texts)


def _matrix(a: Annex, cells: Sequence[tuple[str, Sequence[str]]]) -> str:
    head = ("threat", *(f"{kind} ({ATTACKS[kind]})" for kind in a.matrix.kinds))
    return _table(head, [(threat, *row) for threat, row in cells])


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    body = [tuple(map(escape, row)) for row in rows]
    return markdown_table(head, body) if body else ""
