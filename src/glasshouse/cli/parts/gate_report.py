"""The officer's page of a gate's log: what left, what was refused and why, the privacy spent, job by job."""

from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

from glasshouse.errors import BadFile
from glasshouse.gate.policy import Policy
from glasshouse.gate.summary import Job, Spent, Summary
from glasshouse.gate.words import CHANGED, REFUSED, say_uncovered
from glasshouse.outside.text import markdown as escape
from glasshouse.report import words
from glasshouse.report.html import Verdict, save, write_page
from glasshouse.report.markdown import table as markdown_table
from glasshouse.report.numbers import plain
from glasshouse.results.exhibits import Place, table
from glasshouse.results.records import Exhibit

SHORT: Final = 8
"""Characters of a job's number that tell jobs apart."""
BY_JOB: Final = ("job", "left", "refused", "bytes that left", "epsilon", "when (UTC)")


def verdict_of(summary: Summary, site: Policy | None, *, entries: int) -> Verdict:
    """The officer's headline: what left, what was refused, and what that does not cover."""
    actions = summary.actions
    left = actions["passed"] + actions["changed"] + actions["observed"]
    title = f"{words.count(left, 'messages')} left this site, {actions['refused']} were refused"
    parts = [
        f"The log is whole: {words.count(entries, 'signed lines')}{_period(summary.jobs)}.",
        f"Grade {summary.grade or 'unknown'} ({summary.sentence or 'no start is logged'}).",
    ]
    # What the gate could not stop comes before what it did.
    if summary.grade != "A":
        parts.append("Uploaded code may be able to go around the gate.")
    if actions["observed"]:
        parts.append(
            f"{words.count(actions['observed'], 'messages')} left unguarded, while it only observed: "
            f"{summary.would['refused']} would have been refused and {summary.would['changed']} changed."
        )
    if stopped := sum(1 for job in summary.jobs if job.kept_out and not job.actions):
        parts.append(f"{words.count(stopped, 'jobs')} did not start or saw no model.")
    if summary.unknown:
        parts.append(f"{words.count(summary.unknown, 'requests')} of an unknown kind were refused.")
    if site is not None:
        parts.append(say_uncovered(site))
    # Red wherever something left that the policy did not judge, or could have.
    kind = "leaks" if actions["observed"] or summary.grade != "A" else "no leak found"
    return Verdict(title=title, lead=" ".join(parts), kind=kind)


def say_job(job: Job) -> str:
    """A job for the terminal, where a wide table would be cut."""
    refused = ", ".join(f"{rule} {count}" for rule, count in (job.refusals + job.kept_out).most_common())
    changed = ", ".join(f"{rule} {count}" for rule, count in job.changes.most_common())
    would = "would be " if job.would else ""
    facts = [
        *(
            f"{name} {job.actions[name]}"
            for name in ("passed", "changed", "refused", "observed")
            if job.actions[name]
        ),
        f"bytes that left {job.bytes_out:,}",
        *([f"{would}refused by {refused}"] if refused else []),
        *([f"{would}changed by {changed}"] if changed else []),
        *([] if job.epsilon is None else [f"epsilon {plain(job.epsilon)}"]),
    ]
    return f"Run {job.run} of app {job.app[:12] or 'unknown'}: {', '.join(facts)}."


def say_spent(spent: Spent, site: Policy | None) -> str:
    """The privacy spent on one data set, with what is left of it."""
    if spent.epsilon is None:
        return (
            f"Data set {spent.dataset}: no epsilon holds; {spent.bare} of {spent.releases} updates left "
            "without the gate's own noise."
        )
    rule = site.out.mechanism if site is not None and site.dataset == spent.dataset else None
    most = "" if rule is None else f" of at most {plain(rule.epsilon)}"
    return (
        f"Data set {spent.dataset}: epsilon {plain(spent.epsilon)}{most} at delta {spent.delta:g} spent by "
        f"{words.count(spent.releases, 'updates')} with the gate's own noise, which can have carried at most "
        f"{plain(spent.bits)} bits."
    )


def write_report(page: Path, summary: Summary, site: Policy | None, *, entries: int) -> None:
    """Write the page as ``.html`` or ``.md``.

    Raises:
        BadFile: another ending, or the file cannot be written.
    """
    verdict = verdict_of(summary, site, entries=entries)
    shown = _exhibits(summary, site)
    if page.suffix == ".html":
        write_page(
            page,
            verdict=verdict,
            tagline=f"what left {site.site}" if site else "what left this site",
            exhibits=shown,
        )
        return
    if page.suffix != ".md":
        raise BadFile(f"page '{page}'", needs=".html or .md", got=page.suffix, fix="choose one")
    lines = [f"# {verdict.title}", "", escape(verdict.lead)]
    for one in shown:
        rows = [[escape(str(cell)) for cell in row] for row in one.data["rows"]]
        lines += ["", f"## {one.title}", "", markdown_table(one.data["columns"], rows)]
    save("\n".join(lines) + "\n", page)


def _exhibits(summary: Summary, site: Policy | None) -> list[Exhibit]:
    """The page's tables; empty ones are left out."""
    kept_out = sum((job.kept_out for job in summary.jobs), Counter[str]())
    stopped = sum((job.refusals for job in summary.jobs), Counter[str]()) + kept_out
    changed = sum((job.changes for job in summary.jobs), Counter[str]())
    jobs = [_job_row(job) for job in summary.jobs]
    place = Place(scenario="gate")
    wanted: list[tuple[str, str, Iterable[str], list[list[Any]]]] = [
        ("What left, by job", "The log has each message, with its job's full number.", BY_JOB, jobs),
        (
            "Why messages and jobs were refused", "One refused for several reasons counts for each.",
            ("reason", "times", "rule"), [[REFUSED.get(r, r), n, r] for r, n in stopped.most_common()],
        ),
        (
            "Privacy spent", "By the gate's own noise, whatever uploaded code did. Smaller is more private.",
            ("data set", "spent"), [[one.dataset, say_spent(one, site)] for one in summary.spent],
        ),
        (
            "What the gate changed before it let messages out", "",
            ("change", "messages", "rule"), [[CHANGED.get(r, r), n, r] for r, n in changed.most_common()],
        ),
    ]  # fmt: skip
    return [
        table(place, title, note, columns=list(names), rows=rows)
        for title, note, names, rows in wanted
        if rows
    ]


def _job_row(job: Job) -> list[object]:
    left = job.actions["passed"] + job.actions["changed"] + job.actions["observed"]
    refused = job.actions["refused"]
    said = "the job" if not job.actions and job.kept_out else str(refused)
    epsilon = "–" if job.epsilon is None else plain(job.epsilon)
    return [job.run[:SHORT], left, said, f"{job.bytes_out:,}", epsilon, _short_period(job)]


def _short_period(job: Job) -> str:
    first, last = job.first[:16].replace("T", " "), job.last[:16].replace("T", " ")
    return first if first == last else f"{first} to {last[11:] if last[:10] == first[:10] else last}"


def _period(jobs: Iterable[Job]) -> str:
    days = sorted({time[:10] for job in jobs for time in (job.first, job.last) if time})
    if not days:
        return ""
    return f", {days[0]}" if len(days) == 1 else f", {days[0]} to {days[-1]}"
