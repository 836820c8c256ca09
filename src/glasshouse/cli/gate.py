"""``glasshouse gate``: run a site's gate, make its keys, and read its log."""

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from glasshouse.cli.parts.importing import importing
from glasshouse.cli.parts.options import Json
from glasshouse.cli.parts.output import say, say_json
from glasshouse.errors import BadFile, BadValue
from glasshouse.gate.certificates import create_certificates
from glasshouse.gate.log import Verified, create_key, public_path, read_public_key, verify
from glasshouse.gate.policy import Policy, read_policy
from glasshouse.registry import load
from glasshouse.report import words
from glasshouse.report.numbers import plain
from glasshouse.results.exhibits import Place, table
from glasshouse.results.records import Exhibit

if TYPE_CHECKING:
    from glasshouse.gate.summary import Job, Spent, Summary
    from glasshouse.report.html import Verdict

_COLUMNS = (
    "run",
    "app",
    "passed",
    "changed",
    "refused",
    "observed",
    "bytes that left",
    "refused by",
    "epsilon",
)


class Deed(StrEnum):
    """What to do."""

    run = "run"
    keys = "keys"
    check = "check"
    report = "report"
    verify = "verify"
    head = "head"


def gate(
    deed: Annotated[
        Deed, typer.Argument(help="run, keys, check: of --policy; report, verify, head: of LOG")
    ] = Deed.run,
    log: Annotated[Path | None, typer.Argument(help="the gate's log, for report, verify and head")] = None,
    *,
    policy: Annotated[Path, typer.Option(help="the site's policy")] = Path("site.toml"),
    kind: Annotated[str, typer.Option("--framework", help="glasshouse list gates")] = "flower",
    listen: Annotated[str, typer.Option(help="HOST:PORT at which nodes find the gate")] = "127.0.0.1:9192",
    to: Annotated[str, typer.Option(help="HOST:PORT of the server")] = "",
    certificate: Annotated[Path | None, typer.Option(help="PEM: the gate's certificate and key")] = None,
    root_certificates: Annotated[Path | None, typer.Option(help="PEM: the server's authorities")] = None,
    insecure: Annotated[bool, typer.Option(help="no TLS; loopback only")] = False,
    observe: Annotated[bool, typer.Option(help="only write what would have been done")] = False,
    key: Annotated[
        Path | None, typer.Option(help="the gate's public key; default: as --policy names it")
    ] = None,
    kept_head: Annotated[str, typer.Option("--head", help="a head that was kept: it must be in LOG")] = "",
    page: Annotated[Path | None, typer.Option("--page", help="write the report as .html or .md")] = None,
    as_json: Json = False,
) -> int:
    """Guard what leaves a site: run its gate, make keys, read its log. Exit code 1: a log does not verify."""
    if deed in (Deed.report, Deed.verify, Deed.head):
        checked = _verified(deed, log, key or public_path(_key_path(policy)), kept_head)
        return _read(deed, checked, policy, page, as_json=as_json)
    site = read_policy(policy)
    if deed is Deed.keys:
        return _make_keys(site)
    if deed is Deed.check:
        say_json(site.model_dump(mode="json", by_alias=True)) if as_json else say(_describe(site))
        return 0
    if not to:
        raise BadValue("glasshouse gate run", needs="the server's address", got="none", fix="--to HOST:PORT")
    ends = {"listen": listen, "to": to, "certificate": certificate, "root_certificates": root_certificates}
    load("gates", kind)(**ends, insecure=insecure).run(site, observe=observe)
    return 0


def _key_path(policy: Path) -> Path:
    """The private key of a policy; of a policy that is not there, the default beside the working folder."""
    if not policy.exists():
        return Path("gate.ed25519")
    site = read_policy(policy)
    return site.folder / site.log.key


def _make_keys(site: Policy) -> int:
    path = site.folder / site.log.key
    create_key(path)
    authority, certificate = create_certificates(site.folder)
    say(f"signs the log: {path}; checks it: {public_path(path)}")
    say(f"for --certificate: {certificate}; for the nodes' --root-certificates: {authority}")
    return 0


def _describe(site: Policy) -> str:
    """A policy in sentences."""
    out, lines = site.out, [f"site {site.site}, data set {site.dataset}"]
    if out.mechanism is not None:
        rule = out.mechanism
        unit = "any two updates" if rule.neighbours == "replace" else "the update against zeros"
        lines.append(
            f"the gate clips to {rule.clip:g} and adds noise of {rule.noise_multiplier * rule.clip:g}: "
            f"at most epsilon {rule.epsilon:g} at delta {rule.delta:g} ({unit})"
        )
    if out.norm:
        lines.append(f"changes of a norm above {out.norm:g} are refused")
    lines.append(f"messages from fewer than {out.examples.least} examples are refused")
    lines.append(f"metrics: {out.metrics}; what is not listed: {out.unlisted}")
    lines.append(_uncovered(site))
    return "\n".join(lines)


def _uncovered(site: Policy) -> str:
    """What no ε of the gate covers."""
    if site.out.mechanism is None:
        return "The gate adds no noise under this policy, so that no epsilon holds."
    return f"Not covered by epsilon: {words.join_words(list(site.outside_epsilon))}."


def _verified(deed: Deed, log: Path | None, key: Path, head: str) -> Verified:
    if log is None:
        raise BadValue(f"glasshouse gate {deed}", needs="a log", got="none", fix="name the gate's log")
    return verify(log, read_public_key(key), head=head)


def _read(deed: Deed, checked: Verified, policy: Path, page: Path | None, *, as_json: bool) -> int:
    """Print what was asked of a log; its fault first."""
    if checked.fault:
        say(f"{checked.fault}. The {len(checked.entries)} entries before it are whole.")
        return 1
    if deed is Deed.head:
        say(checked.head)
    if deed is Deed.verify:
        say(f"{len(checked.entries)} entries, chain and signatures whole, head {checked.head}")
    if deed is Deed.report:
        site = read_policy(policy) if policy.exists() else None
        with importing():
            from glasshouse.gate.summary import summarize

        _report(summarize(checked.entries, site), site, page, as_json=as_json)
    return 0


def _report(summary: "Summary", site: Policy | None, page: Path | None, *, as_json: bool) -> None:
    rows = [_row(job) for job in summary.jobs]
    if as_json:
        spent = [{"dataset": s.dataset, "epsilon": s.epsilon, "releases": s.releases} for s in summary.spent]
        jobs = [dict(zip(_COLUMNS, row, strict=True)) for row in rows]
        say_json({"grade": summary.grade, "jobs": jobs, "spent": spent})
        return
    verdict = _verdict(summary, site)
    say(f"{verdict.title}. {verdict.lead}")
    for sentence in (*map(_sentence, rows), *map(_spent, summary.spent)):
        say(sentence)
    if page is not None:
        _write(page, verdict, summary, rows)
        say(f"report: {page}")


def _write(page: Path, verdict: "Verdict", summary: "Summary", rows: list[list[object]]) -> None:
    if page.suffix == ".html":
        with importing():
            from glasshouse.report.html import write_page

        write_page(page, verdict=verdict, tagline="what left this site", exhibits=_exhibits(summary, rows))
        return
    if page.suffix != ".md":
        raise BadFile(f"page '{page}'", needs=".html or .md", got=page.suffix, fix="choose one")
    lines = [f"# {verdict.title}", "", verdict.lead, "", "| " + " | ".join(_COLUMNS) + " |"]
    lines += ["|" + "---|" * len(_COLUMNS)]
    lines += ["| " + " | ".join(str(cell).replace("|", "/") for cell in row) + " |" for row in rows]
    lines += ["", *(f"- {_spent(spent)}" for spent in summary.spent)]
    page.write_text("\n".join(lines) + "\n")


def _verdict(summary: "Summary", site: Policy | None) -> "Verdict":
    """The officer's headline: what left, what was refused, and what that does not cover."""
    actions = summary.actions
    left = actions["passed"] + actions["changed"]
    title = f"{words.count(left, 'messages')} left this site, {actions['refused']} were refused"
    parts = [f"Grade {summary.grade or 'unknown'}: {summary.sentence or 'no start is logged'}."]
    if summary.grade != "A":
        parts.append("Uploaded code may be able to go around the gate.")
    if actions["observed"]:
        parts.append(
            f"{words.count(actions['observed'], 'messages')} left unguarded, while it only observed."
        )
    if summary.unknown:
        parts.append(f"{words.count(summary.unknown, 'requests')} of an unknown kind were refused.")
    if site is not None:
        parts.append(_uncovered(site))
    kind = "leaks" if actions["observed"] or summary.grade != "A" else "no leak found"
    with importing():
        from glasshouse.report.html import Verdict

    return Verdict(title=title, lead=" ".join(parts), kind=kind)


def _row(job: "Job") -> list[object]:
    refused = ", ".join(f"{rule} {count}" for rule, count in job.refusals.most_common())
    epsilon = "" if job.epsilon is None else plain(job.epsilon)
    counts = [job.actions[name] for name in ("passed", "changed", "refused", "observed")]
    return [job.run, job.app[:12], *counts, f"{job.bytes_out:,}", refused, epsilon]


def _sentence(row: list[object]) -> str:
    """A row of the table for the terminal, where a wide table would be cut."""
    facts = [
        f"{name} {cell}" for name, cell in zip(_COLUMNS[2:], row[2:], strict=True) if cell not in ("", 0)
    ]
    return f"Run {row[0]} of app {row[1] or 'unknown'}: {', '.join(facts)}."


def _spent(spent: "Spent") -> str:
    if spent.epsilon is None:
        return (
            f"Data set {spent.dataset}: no epsilon holds; {spent.bare} of {spent.releases} updates left "
            "without the gate's own noise."
        )
    return (
        f"Data set {spent.dataset}: epsilon {plain(spent.epsilon)} at delta {spent.delta:g} spent by "
        f"{words.count(spent.releases, 'updates')} with the gate's own noise, which can have carried at most "
        f"{plain(spent.bits)} bits."
    )


def _exhibits(summary: "Summary", rows: list[list[object]]) -> list[Exhibit]:
    place = Place(scenario="gate")
    kept_out = [[job.run, rule, count] for job in summary.jobs for rule, count in job.kept_out.items()]
    changed = [[job.run, rule, count] for job in summary.jobs for rule, count in job.changes.items()]
    shown = [
        table(
            place,
            "By job",
            "A message refused by several rules counts for each.",
            columns=_COLUMNS,
            rows=rows,
        ),
        table(
            place,
            "Privacy spent",
            "By the gate's own noise, whatever the uploaded code did.",
            columns=["data set", "spent"],
            rows=[[spent.dataset, _spent(spent)] for spent in summary.spent],
        ),
        table(place, "Changed", "", columns=["run", "rule", "messages"], rows=changed),
        table(place, "Kept from the app", "", columns=["run", "rule", "messages"], rows=kept_out),
    ]
    return [one for one in shown if one.data["rows"]]
