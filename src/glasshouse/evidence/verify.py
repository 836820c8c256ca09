"""Verify a bundle offline: its signature, its statement, and that the run is the one it speaks of."""

import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, final

from glasshouse.errors import GlasshouseError
from glasshouse.evidence import digests, register
from glasshouse.evidence.dsse import Refused, opened
from glasshouse.evidence.plans import planned_of
from glasshouse.evidence.statement import (
    EVIDENCE,
    HIDEABLE,
    PREDICATE,
    STATEMENT,
    outcome,
    parts_of,
    read_stamp,
    statement,
)
from glasshouse.outside import limits
from glasshouse.outside.files import check_plain_tree, damaged, parse_json, read_limited, reason
from glasshouse.results.files import read_result

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

__all__ = ["Check", "verify"]

State = Literal["holds", "refused", "not here"]
_ALL_PARTS: Final = "parts of the run"


@final
@dataclass(frozen=True, kw_only=True)
class Check:
    """One thing that was looked at.

    Attributes:
        name: of what was checked.
        state: ``not here`` is no refusal: a run may be shared without its truth.
        got: what was found, if it does not hold.
    """

    name: str
    state: State
    got: str = ""


def verify(
    envelope: Any, key: "Ed25519PublicKey", run: Path | None, *, log: Path | None = None
) -> list[Check]:
    """All checks of a bundle, in order; after a refused signature nothing else is believed.

    Args:
        envelope: as read from the bundle's file.
        key: public key of the one who is said to have signed.
        run: folder of the run; None: only signature and statement are checked.
        log: register in which the audit must stand; None: not checked.
    """
    try:
        body = parse_json(opened(envelope, key).decode("utf-8", "replace"), subject="the statement")
        signed = _statement(body)
    except Refused as error:
        return [Check(name=error.check, state="refused", got=error.got)]
    except GlasshouseError as error:
        return [Check(name="statement", state="refused", got=error.got)]
    checks = [Check(name="signature", state="holds"), Check(name="statement", state="holds")]
    if run is None:
        return [*checks, Check(name=_ALL_PARTS, state="not here")]
    try:
        check_plain_tree(run, subject=f"run '{run}'")
        checks += _parts(signed, run)
        checks += _meanings(body, signed, run)
        if log is not None:
            checks.append(_registered(signed, run, log))
    except GlasshouseError as error:
        checks.append(Check(name=error.subject, state="refused", got=error.got))
    return checks


def _statement(body: Any) -> Mapping[str, Any]:
    """Our part of a statement of the right kind."""
    if not isinstance(body, dict) or body.get("_type") != STATEMENT:
        raise Refused("statement", f"no {STATEMENT}")
    if body.get("predicateType") != PREDICATE:
        raise Refused("statement", f"its predicate is no {PREDICATE}")
    predicate = body.get("predicate")
    signed = predicate.get(EVIDENCE) if isinstance(predicate, dict) else None
    if not isinstance(signed, dict) or not isinstance(signed.get("parts"), dict):
        raise Refused("statement", f"its predicate has no {EVIDENCE}")
    return signed


def _parts(signed: Mapping[str, Any], run: Path) -> Iterator[Check]:
    """Every part of the run against its signed digest; parts that were added are refused, too."""
    here, wanted = parts_of(run), signed["parts"]
    for name in sorted(here.keys() | wanted.keys()):
        if name not in wanted:
            yield Check(name=name, state="refused", got="added after it was signed")
        elif name not in here:
            state: State = "not here" if name.endswith(f"/{HIDEABLE}") else "refused"
            yield Check(name=name, state=state, got="missing")
        elif here[name] != wanted[name]:
            yield Check(name=name, state="refused", got="changed after it was signed")
        else:
            yield Check(name=name, state="holds")


def _meanings(body: Mapping[str, Any], signed: Mapping[str, Any], run: Path) -> Iterator[Check]:
    """What hangs together: stamp and scenario, stamp and policy, result and verdicts."""
    stamp = read_stamp(run)
    planned = {one.name: one.model_dump() for one in stamp.scenarios}
    for path in (
        [run / "scenario.toml"] if (run / "scenario.toml").is_file() else (run / "scenarios").glob("*.toml")
    ):
        now = asdict(_plan(path))
        before = planned.get(now["name"], {})
        # What was planned before the truth was opened must be what was judged.
        for kind in ("scenario", "policy", "seed", "attack_seed"):
            name = f"{kind} of {now['name']}, as stamped before the truth was made"
            yield _equal(name, before.get(kind) == now[kind], "another one now")
    yield _equal("audit of the stamp", stamp.audit == signed.get("audit"), "the stamp of another audit")
    result = read_result(run / "result.json")
    # The statement is made anew from the run: whatever was signed must follow from it.
    again = statement(run, when=str(signed.get("attested")))
    verdicts = outcome(result)
    stated = {name: body["predicate"].get(name) for name in verdicts}
    yield _equal(
        "verdict that the result gives", stated == verdicts, f"the result gives {verdicts['result']}"
    )
    findings = again["predicate"][EVIDENCE]["findings"]
    yield _equal("findings of the result", signed.get("findings") == findings, "other findings")
    yield _equal("subjects", body.get("subject") == again["subject"], "not the run's transcripts")
    yield _equal(
        "configuration",
        body["predicate"].get("configuration") == again["predicate"]["configuration"],
        "not the run's scenario, policy and code",
    )


def _registered(signed: Mapping[str, Any], run: Path, log: Path) -> Check:
    """Whether the register knows the audit with this stamp, and holds the head that the result names."""
    lines = register.read_register(log)
    stamp = digests.of_file(run / "stamp.json")
    begun = [line for line in lines if line.audit == signed.get("audit") and line.event == "begun"]
    entry = signed.get("register")
    head = entry.get("head") if isinstance(entry, dict) else None
    if not begun or begun[0].digest != stamp:
        return Check(name="register", state="refused", got="no audit with this stamp was begun there")
    return _equal("register", head in {line.hash for line in lines}, "its end was cut, or it is another one")


def _equal(name: str, same: bool, got: str) -> Check:
    return Check(name=name, state="holds" if same else "refused", got="" if same else got)


def _plan(path: Path) -> register.Planned:
    subject = f"scenario '{path}'"
    text = read_limited(path, limits.TOML_BYTES, subject=subject).decode("utf-8", "replace")
    try:
        return planned_of(tomllib.loads(text))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:  # no such scenario
        raise damaged(
            subject, needs="a scenario as 'glasshouse audit' wrote it", got=reason(error)
        ) from error
