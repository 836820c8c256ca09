"""``glasshouse gate``: run a site's gate, make its keys, and read its log."""

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from glasshouse.cli.parts.importing import importing
from glasshouse.cli.parts.options import Json
from glasshouse.cli.parts.output import say, say_json
from glasshouse.errors import BadFile, BadValue
from glasshouse.gate.certificates import CERTIFICATES, create_certificates
from glasshouse.gate.log import Verified, create_key, public_path, read_public_key, verify
from glasshouse.gate.policy import Policy, read_policy
from glasshouse.gate.words import say_uncovered
from glasshouse.registry import arguments, load

if TYPE_CHECKING:
    from glasshouse.gate.summary import Job


class Deed(StrEnum):
    """What to do."""

    run = "run"
    keys = "keys"
    check = "check"
    install = "install"
    report = "report"
    verify = "verify"
    head = "head"


def gate(
    deed: Annotated[
        Deed,
        typer.Argument(
            help="run, keys, check: of --policy; install: in FOLDER; report, verify, head: of LOG"
        ),
    ] = Deed.run,
    log: Annotated[
        Path | None,
        typer.Argument(help="the gate's log, for report, verify and head; a site's folder, for install"),
    ] = None,
    *,
    policy: Annotated[Path, typer.Option(help="the site's policy")] = Path("site.toml"),
    kind: Annotated[str, typer.Option("--framework", help="glasshouse list gates")] = "flower",
    listen: Annotated[str, typer.Option(help="HOST:PORT at which nodes find the gate")] = "127.0.0.1:9192",
    to: Annotated[str, typer.Option(help="HOST:PORT of the server")] = "",
    certificate: Annotated[Path | None, typer.Option(help="PEM: the gate's certificate and key")] = None,
    root_certificates: Annotated[Path | None, typer.Option(help="PEM: the server's authorities")] = None,
    insecure: Annotated[bool, typer.Option(help="no TLS; loopback only")] = False,
    observe: Annotated[bool, typer.Option(help="only write what would have been done")] = False,
    in_process: Annotated[bool, typer.Option(help="install: scripts may share the filters' process")] = False,
    compare: Annotated[
        bool, typer.Option("--check", help="install: compare only; exit code 1 if any differs")
    ] = False,
    key: Annotated[
        Path | None, typer.Option(help="the gate's public key; default: as --policy names it")
    ] = None,
    kept_head: Annotated[str, typer.Option("--head", help="a head that was kept: it must be in LOG")] = "",
    page: Annotated[Path | None, typer.Option("--page", help="write the report as .html or .md")] = None,
    as_json: Json = False,
) -> int:
    """Guard what leaves a site: run its gate, make keys, read its log. Exit code 1: a log does not verify."""
    # Reading a log needs no policy, only the key that signed it.
    if deed in (Deed.report, Deed.verify, Deed.head):
        checked = _verified(deed, log, key or public_path(_key_path(policy)), kept_head)
        return _read(deed, checked, policy, page, as_json=as_json)
    if deed is Deed.install:
        if log is None:
            raise BadValue("glasshouse gate install", needs="a site's folder", got="none", fix="name it")
        chosen = {"in_process": True} if in_process else {}
        differs, told = load("gates", kind)(**chosen).install(log, policy, observe=observe, check=compare)
        say(told)
        return int(compare and differs)
    site = read_policy(policy)
    if deed is Deed.keys:
        return _make_keys(site)
    if deed is Deed.check:
        say_json(site.model_dump(mode="json", by_alias=True)) if as_json else say(_describe(site))
        return 0
    if not to:
        raise BadValue("glasshouse gate run", needs="the server's address", got="none", fix="--to HOST:PORT")
    # A gate takes those of the ends that it knows: FLARE's has no port.
    ends = {
        "listen": listen, "to": to, "certificate": certificate, "root_certificates": root_certificates,
        "insecure": insecure,
    }  # fmt: skip
    maker = load("gates", kind)
    maker(**{name: end for name, end in ends.items() if name in arguments(maker)}).run(site, observe=observe)
    return 0


def _key_path(policy: Path) -> Path:
    """The private key of a policy; of a policy that is not there, the default beside the working folder."""
    if not policy.exists():
        return Path("gate.ed25519")
    site = read_policy(policy)
    return site.folder / site.log.key


def _make_keys(site: Policy) -> int:
    path = site.folder / site.log.key
    for made in (path, public_path(path), *(site.folder / name for name in CERTIFICATES)):
        if made.exists():
            fix = "use the keys that are there; or move all of them away, and the log that they signed"
            raise BadFile(f"file '{made}'", needs="no keys yet", got="a file", fix=fix)
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
    lines.append(say_uncovered(site))
    return "\n".join(lines)


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
        _report(checked, site, page, as_json=as_json)
    return 0


def _report(checked: Verified, site: Policy | None, page: Path | None, *, as_json: bool) -> None:
    with importing():
        from glasshouse.cli.parts.gate_report import say_job, say_spent, verdict_of, write_report
        from glasshouse.gate.summary import summarize

    summary, entries = summarize(checked.entries, site), len(checked.entries)
    if as_json:
        spent = [{"dataset": s.dataset, "epsilon": s.epsilon, "releases": s.releases} for s in summary.spent]
        say_json({"grade": summary.grade, "jobs": [_as_table(job) for job in summary.jobs], "spent": spent})
        return
    verdict = verdict_of(summary, site, entries=entries)
    say(f"{verdict.title}. {verdict.lead}")
    for sentence in (*map(say_job, summary.jobs), *(say_spent(one, site) for one in summary.spent)):
        say(sentence)
    if page is not None:
        write_report(page, summary, site, entries=entries)
        say(f"report: {page}")


def _as_table(job: "Job") -> dict[str, object]:
    return {
        "run": job.run, "app": job.app, "first": job.first, "last": job.last, "bytes_out": job.bytes_out,
        **{name: job.actions[name] for name in ("passed", "changed", "refused", "observed")},
        "refusals": dict(job.refusals), "kept_out": dict(job.kept_out), "changes": dict(job.changes),
        "epsilon": job.epsilon,
    }  # fmt: skip
