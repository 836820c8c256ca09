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
from glasshouse.report import html, numbers, readings, tables, words
from glasshouse.report.cards import Cards
from glasshouse.report.first_screen.matrix import (
    EXAMPLES,
    GROUP,
    LABELS,
    OTHERS,
    PEOPLE,
    Cell,
    Matrix,
    column,
    matrix,
    threat_of,
)
from glasshouse.report.markdown import table as markdown_table
from glasshouse.report.verdicts.answer import facts
from glasshouse.report.verdicts.choice import ORDER, choose
from glasshouse.report.verdicts.policy import policy
from glasshouse.results.cards import ThreatCard
from glasshouse.results.records import Finding, Result
from glasshouse.results.rows import grouped

UNTESTED: Final = "NOT TESTED"
ATTACKS: Final[Mapping[str, str]] = {
    **dict.fromkeys((*EXAMPLES, OTHERS), "reconstruction, model inversion, exfiltration"),
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
    "scenarios": ("scenario", "federation", "adversary", "sees and is given", "data"),
    "findings": (
        "scenario", "setting", "threat", "attack", "kind", "verdict", "value [95 %]", "guessing", "n",
    ),
    "refusals": ("what", "why"),
    "guarantees": (
        "scenario", "setting", "privacy loss parameter ε", "δ", "unit of privacy", "neighboring datasets",
        "utility",
    ),
    "requirements": ("requirement", "text", "evidence"),
}  # fmt: skip
"""Columns of the tables."""
LIMITS: Final = (
    "Findings hold for the attacks, settings, network and data named here, and bound no attack beside them.",
    "An attack that came to nothing is no proof of safety. A guarantee (ε, δ) that is in force covers all.",
    "The finished model is not attacked here: membership and extraction of released models need other tools.",
    "This annex says nothing of legal basis, retention, processors or the rights of data subjects.",
)


class Guarantee(NamedTuple):
    """A setting's differential-privacy guarantee in the words of NIST SP 800-226."""

    scenario: str
    setting: str
    epsilon: str
    delta: str
    unit: str
    neighbours: str
    utility: str


class Requirement(NamedTuple):
    """A requirement of a standard, and what this run is evidence of."""

    name: str
    text: str
    evidence: str


@final
@dataclass(frozen=True, kw_only=True)
class Annex:
    """The content of the annex.

    Attributes:
        title: name of the suite.
        facts: (name, value): who ran it, when, with what.
        scenarios: (scenario, federation, adversary, what it sees and is given, data).
        matrix: threats against kinds of private data; the report shows the same.
        findings: (scenario, setting, attack, kind, verdict, number, guessing, n).
        refusals: (subject, got).
        guarantees: of settings with defences, or with a guarantee.
        requirements: of standards.
        policy: (state, sentence) of every limit, and a summary before them.
        residual: sentences by rule.
    """

    title: str
    facts: Sequence[tuple[str, str]]
    scenarios: Sequence[tuple[str, str, str, str, str]]
    matrix: Matrix
    findings: Sequence[tuple[str, ...]]
    refusals: Sequence[tuple[str, str]]
    guarantees: Sequence[Guarantee]
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
    cells = [(row.threat, [_text(c, Cards.of(result)) for c in row.cells]) for row in content.matrix.rows]
    page = html.page("annex.html", a=content, cells=cells, attacks=ATTACKS, limits=LIMITS, heads=HEADS)
    return [html.save(page, run / "annex.html"), html.save(annex_markdown(content, cells), run / "annex.md")]


def annex(result: Result) -> Annex:
    """The annex of a result. Every number is the result's own; nothing is rated here."""
    choice, cards = choose(result), Cards.of(result)
    threats = {card.scenario: threat_of(card) for card in result.threats}
    kinds = {id(f): column(f, cards, {c.scenario: c for c in result.threats}) for f in choice.findings}
    table = matrix(result, choice)
    outcome = policy(result)
    limits = [(state, one.text) for state, group in outcome.groups for one in group]
    return Annex(
        title=result.suite,
        facts=[*facts(result), *_program(result)],
        scenarios=[_scenario(card) for card in result.threats],
        matrix=table,
        findings=[_finding(f, cards, threats, kinds[id(f)]) for f in choice.findings],
        refusals=list(dict.fromkeys((r.subject, r.got) for r in result.refusals)),
        guarantees=list(_guarantees(result)),
        requirements=_requirements(result, choice.findings, cards),
        policy=[("", outcome.text), *limits],
        residual=[table.coverage, *_residual(choice.findings, kinds, threats)],
    )


def _text(cell: Cell, cards: Cards) -> str:
    """A cell of the matrix: its state, the number of its worst finding, and how many tests say so."""
    if cell.worst is None:
        return UNTESTED
    return f"{cell.text}: {_number(cell.worst, cards)} ({cell.detail})"


def _number(f: Finding, cards: Cards) -> str:
    reading, label = readings.read(f, cards), cards.metric(f.metric).label
    return (
        f"{cards.attack(f.attack)}: {label} {reading.value} {reading.interval}, guessing {reading.baseline}, "
        f"n = {f.n}"
    )


def _finding(f: Finding, cards: Cards, threats: Mapping[str, str], kind: str) -> tuple[str, ...]:
    card, reading = cards.metric(f.metric), readings.read(f, cards)
    number = f"{card.label} {reading.value} {reading.interval}"
    threat = threats.get(f.scenario, "")
    n = words.count(f.n, f.unit) if f.unit else str(f.n)
    setting = tables.setting(f)
    return (f.scenario, setting, threat, cards.attack(f.attack), kind, f.verdict, number, reading.baseline, n)


def _scenario(card: ThreatCard) -> tuple[str, str, str, str, str]:
    seen = [*card.sees, *(f"it may change {part}" for part in card.changes)]
    given = words.grants(card.given)
    sees = "; ".join([*seen, *([f"it is given {given}"] if given else [])])
    return card.scenario, card.federation, card.adversary, sees, f"{card.data}; network: {card.model}"


def _guarantees(result: Result) -> Iterable[Guarantee]:
    """One row per setting: its guarantee, or that it has none."""
    units = {f.cell: f.bound for f in result.findings if f.bound is not None}
    for row in readings.one_per_setting(result.utility):
        limit = units.get(row.cell)
        unit, neighbours = UNITS[limit.unit] if limit else ("not stated", "not stated")
        with_bound = row.epsilon is not None
        yield Guarantee(
            scenario=row.scenario,
            setting=tables.setting(row),
            epsilon=f"{row.epsilon:.3g}" if row.epsilon is not None else "none",
            delta=f"{row.delta:g}" if row.delta is not None else "none",
            unit=unit if with_bound else "none",
            neighbours=neighbours if with_bound else "none",
            utility=f"{row.metric} {numbers.percent(row.value)} %",
        )


def _requirements(result: Result, findings: Sequence[Finding], cards: Cards) -> list[Requirement]:
    """OWASP AISVS 1.0, C11.2.4 and C11.2.5, and which findings answer them."""
    epsilons = sorted({u.epsilon for u in result.utility if u.epsilon is not None})
    private = f"settings with ε = {', '.join(f'{e:.3g}' for e in epsilons)}" if epsilons else ""
    without = sum(u.epsilon is None for u in result.utility)
    rest = f"{words.count(without, 'settings')} without a guarantee" if without else ""
    members = [f for f in findings if cards.metric(f.metric).severity == "membership"]
    simulated = "; ".join(f"{_number(f, cards)}: {f.verdict}" for f in members)
    return [
        Requirement(
            "OWASP AISVS 1.0, C11.2.4 (level 2)",
            "training on sensitive datasets employs differentially-private optimization",
            words.join_words([part for part in (private, rest) if part]) or UNTESTED,
        ),
        Requirement(
            "OWASP AISVS 1.0, C11.2.5 (level 3)",
            "membership-inference attack simulations demonstrate that attack accuracy does not exceed random "
            "guessing on evaluated data",
            simulated or UNTESTED,
        ),
    ]


def _residual(
    findings: Sequence[Finding], kinds: Mapping[int, str], threats: Mapping[str, str]
) -> Iterable[str]:
    """What remains, by rule: a sentence per verdict and threat, in the order of verdicts."""
    groups = grouped(findings, lambda f: (f.verdict, threats.get(f.scenario, "an adversary")))
    for (verdict, threat), group in sorted(
        groups.items(), key=lambda item: (ORDER.index(item[0][0]), item[0])
    ):
        about = {kinds[id(f)] for f in group}
        named = words.join_words([kind for kind in ATTACKS if kind in about])
        settings = {(f.scenario, f.cell) for f in group}
        where = words.count(len(settings), "settings")
        yield f"{threat}: '{verdict}' in {words.count(len(group), 'findings')} about {named}, in {where}."


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
        "2. Threats, kinds of private data, verdicts": f"{a.matrix.coverage}\n\n{_matrix(a, cells)}",
        "3. Findings": _table(HEADS["findings"], a.findings),
        "4. What could not run": _table(HEADS["refusals"], a.refusals),
        "5. Guarantees (NIST SP 800-226)": _table(HEADS["guarantees"], a.guarantees),
        "6. Requirements that this is evidence for": _table(HEADS["requirements"], a.requirements),
        "7. Policy": "\n".join(
            f"- {escape(f'{state}: {text}' if state else text)}" for state, text in a.policy
        ),
        "8. What remains": "\n".join(f"- {escape(text)}" for text in a.residual),
        "9. Limits of this annex": "\n".join(f"- {text}" for text in LIMITS),
    }
    parts += [f"## {title}\n\n{body or 'None.'}" for title, body in sections.items()]
    return "\n\n".join(parts) + "\n"


def _matrix(a: Annex, cells: Sequence[tuple[str, Sequence[str]]]) -> str:
    head = ("threat", *(f"{kind} ({ATTACKS[kind]})" for kind in a.matrix.kinds))
    return _table(head, [(threat, *row) for threat, row in cells])


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    body = [tuple(map(escape, row)) for row in rows]
    return markdown_table(head, body) if body else ""
