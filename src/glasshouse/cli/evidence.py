"""``glasshouse attest``, ``verify`` and ``register``: evidence that others can check."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from glasshouse.cli.parts.options import Json
from glasshouse.cli.parts.output import say, say_json
from glasshouse.disk import write_text
from glasshouse.errors import BadValue
from glasshouse.evidence import digests, dsse
from glasshouse.evidence.register import Line, default_path, read_register
from glasshouse.evidence.statement import statement
from glasshouse.evidence.verify import Check
from glasshouse.evidence.verify import verify as verify_bundle
from glasshouse.outside import text

BUNDLE = "attestation.json"
Bundle = Annotated[Path, typer.Argument(help="what attest wrote")]


def attest(
    run: Annotated[Path | None, typer.Argument(help="a run directory")] = None,
    *,
    key: Annotated[Path | None, typer.Option(help="private key (Ed25519, PEM)")] = None,
    out: Annotated[Path | None, typer.Option(help=f"the bundle; default RUN/{BUNDLE}")] = None,
    new_key: Annotated[Path | None, typer.Option(help="write a new key pair: FILE and FILE.pub")] = None,
) -> int:
    """Sign what RUN consists of and what it found: an in-toto statement in a DSSE envelope."""
    if new_key is not None:
        say(f"public key: {dsse.new_key(new_key)}\nprivate key: {new_key}")
        if run is None:
            return 0
    if run is None or key is None:
        raise BadValue(
            "glasshouse attest",
            needs="a run and a private key",
            got="no run" if run is None else "no key",
            fix="glasshouse attest --new-key auditor.pem; then glasshouse attest RUN --key auditor.pem",
        )
    secret = dsse.read_private(key)
    body = digests.canonical(statement(run, when=datetime.now(UTC).isoformat(timespec="seconds")))
    place = out or run / BUNDLE
    write_text(place, text.as_json(dsse.sealed(body, secret), indent=1) + "\n")
    say(f"bundle: {place}\nkey: {dsse.key_id(secret.public_key())}")
    return 0


def verify(
    bundle: Bundle,
    *,
    key: Annotated[Path, typer.Option(help="public key of whoever is said to have signed (PEM)")],
    run: Annotated[Path | None, typer.Option(help="the run; default: the folder of BUNDLE")] = None,
    register: Annotated[Path | None, typer.Option(help="register in which the audit must stand")] = None,
    alone: Annotated[
        bool, typer.Option("--alone", help="the run is not here: check the bundle only")
    ] = False,
    as_json: Json = False,
) -> int:
    """Whether BUNDLE is what was signed and RUN what it speaks of. Exit code 1 if anything is refused."""
    place = None if alone else run or bundle.parent
    checks = verify_bundle(dsse.read_envelope(bundle), dsse.read_public(key), place, log=register)
    refused = [one for one in checks if one.state == "refused"]
    if as_json:
        say_json([vars(one) for one in checks])
    else:
        for one in checks:
            say(f"{one.state:9}{one.name}{f': {one.got}' if one.got else ''}")
        say(f"REFUSED: {', '.join(one.name for one in refused)}" if refused else _summary(checks))
    return 1 if refused else 0


def _summary(checks: list[Check]) -> str:
    absent = sum(one.state == "not here" for one in checks)
    return f"verified: {len(checks) - absent} checks hold" + (f", {absent} not here" if absent else "")


def register(
    file: Annotated[Path | None, typer.Argument(help="default runs/register.jsonl")] = None,
    *,
    as_json: Json = False,
) -> int:
    """List the audits that FILE says were begun, after checking its chain, and print its head."""
    lines = read_register(file or default_path())
    ended = {line.audit: line.when for line in lines if line.event == "ended"}
    begun = [line for line in lines if line.event == "begun"]
    head = lines[-1].hash if lines else ""
    if as_json:
        say_json({"head": head, "audits": [_row(line, ended) for line in begun]})
        return 0
    for line in begun:
        names = ", ".join(f"{one.name} (seeds {one.seed}, {one.attack_seed})" for one in line.scenarios)
        say(f"{line.when}  {line.audit}  {'ended' if line.audit in ended else 'did not end'}  {names}")
    say(f"{len(begun)} audits begun, {len(ended)} ended; the chain holds. Head: {head or 'none'}")
    return 0


def _row(line: Line, ended: dict[str, str]) -> dict[str, Any]:
    scenarios = [one.model_dump() for one in line.scenarios]
    return {"audit": line.audit, "begun": line.when, "ended": ended.get(line.audit), "scenarios": scenarios}
