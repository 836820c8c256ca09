"""What is signed about a run: an in-toto statement with a test-result predicate.

Source: in-toto/attestation, ``spec/v1/statement.md`` and ``spec/predicates/test-result.md`` (v0.1).
Subjects are what was tested (the transcripts); ``configuration`` is how (scenarios, policies, stamp, code).
The predicate's three words know no "cannot tell": a limit that is undecided or unmeasured is *warned*, a
run without any limit or with one that is not shown is ``WARNED``. All else stands in a field of our own,
:data:`EVIDENCE`.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from pydantic import ValidationError

from glasshouse import __version__
from glasshouse.errors import BadFile
from glasshouse.evidence import digests
from glasshouse.evidence.plans import Stamp
from glasshouse.outside import limits
from glasshouse.outside.files import check_plain_tree, parse_json, read_limited, reason
from glasshouse.results.files import read_result
from glasshouse.results.outcome import HELD, POLICY_BROKEN, exit_code
from glasshouse.results.records import Finding, Result

__all__ = ["EVIDENCE", "PREDICATE", "STATEMENT", "outcome", "parts_of", "read_stamp", "statement"]

STATEMENT: Final = "https://in-toto.io/Statement/v1"
PREDICATE: Final = "https://in-toto.io/attestation/test-result/v0.1"
EVIDENCE: Final = "urn:glasshouse:evidence:v1"
FOLDERS: Final = ("transcript", "own", "grants", "adversary", "truth", "claims")
"""Parts of one federation's folder, each with a digest of its own."""
HIDEABLE: Final = "truth"
"""The part that may be missing as a whole: runs are shared without it."""
_FILES: Final = (
    "scenario.toml",
    "scenario.given.toml",
    "stamp.json",
    "code.json",
    "result.json",
    "manifest.json",
)
_TESTS: Final = {"holds": "passedTests", "broken": "failedTests"}


def statement(run: Path, *, when: str) -> dict[str, Any]:
    """The statement about a finished run.

    Args:
        run: its folder.
        when: now, as it shall stand there.

    Raises:
        BadFile: no result or no stamp, or a link, pipe or device in the folder.
    """
    check_plain_tree(run, subject=f"run '{run}'")
    result, stamp = read_result(run / "result.json"), read_stamp(run)
    parts = parts_of(run)
    tested = [name for name in parts if name.endswith("/transcript")] or ["result.json"]
    how = [name for name in parts if name.startswith("scenario") or name in ("stamp.json", "code.json")]
    configuration = [_resource(name, parts[name]) for name in how]
    for one in stamp.scenarios:
        configuration.append(_resource(f"settings of {one.name}, without seeds", one.scenario))
        configuration.append(_resource(f"policy of {one.name}", one.policy))
    code = stamp.code
    named = f"glasshouse {code.glasshouse}, commit {code.commit or 'unknown'}: its Python files"
    configuration.append(_resource(named, code.source))
    evidence = {
        "attested": when,
        "attestedBy": f"glasshouse {__version__}",
        "audit": stamp.audit,
        "begun": stamp.when,
        "register": result.manifest.get("register", {"kept": False}),
        "auditor": str(result.manifest.get("auditor", "")),
        "parts": parts,
        "findings": [_finding(f) for f in result.findings if f.primary],
        "notRun": [_refusal(r.scenario, r.subject, r.got) for r in result.refusals],
    }
    return {
        "_type": STATEMENT,
        "subject": [_resource(name, parts[name]) for name in tested],
        "predicateType": PREDICATE,
        "predicate": {**outcome(result), "configuration": configuration, EVIDENCE: evidence},
    }


def outcome(result: Result) -> dict[str, Any]:
    """``result`` and the lists of tests that it follows from; one test per limit of a policy."""
    tests: dict[str, list[str]] = {"passedTests": [], "warnedTests": [], "failedTests": []}
    for limit in result.limits:
        name = f"{limit.scenario}: {limit.subject}, at most {limit.limit:g}"
        kind = _TESTS.get(limit.state, "warnedTests")
        tests[kind].append(name if kind in _TESTS.values() else f"{name} ({limit.state})")
    code = exit_code(result)
    shown = code == HELD and bool(result.limits)
    word = "FAILED" if code == POLICY_BROKEN else "PASSED" if shown else "WARNED"
    return {"result": word, **tests}


def parts_of(run: Path) -> dict[str, str]:
    """SHA-256 of everything that a result rests on, by name; pages and tables made of it are left out."""
    files = [run / name for name in _FILES if (run / name).is_file()]
    files += sorted((run / "scenarios").glob("*.toml"))
    parts = {path.relative_to(run).as_posix(): digests.of_file(path) for path in files}
    for group in sorted(path for path in (run / "cells").glob("*") if path.is_dir()):
        for part in FOLDERS:
            if (group / part).is_dir():
                parts[f"cells/{group.name}/{part}"] = digests.of_folder(group / part)
    return parts


def read_stamp(run: Path) -> Stamp:
    """The stamp of a run.

    Raises:
        BadFile: there is none, or it lacks a part.
    """
    subject = f"stamp of run '{run}'"
    content = read_limited(run / "stamp.json", limits.JSON_BYTES, subject=subject)
    raw = parse_json(content.decode("utf-8", "replace"), subject=subject)
    try:
        return Stamp.model_validate(raw)
    except ValidationError as error:
        got, fix = reason(error), "get the run again, or run the audit again"
        raise BadFile(subject, needs="what 'glasshouse audit' wrote", got=got, fix=fix) from error


def _resource(name: str, digest: str) -> dict[str, Any]:
    return {"name": name, "digest": {"sha256": digest}}


def _finding(f: Finding) -> dict[str, Any]:
    """What a reader of the statement needs of a finding; numbers as texts of full precision."""
    place: Mapping[str, Any] = {
        "scenario": f.scenario,
        "cell": f.cell,
        "attack": f.attack,
        "metric": f.metric,
    }
    numbers = {
        name: repr(getattr(f, name)) for name in ("value", "low", "high", "gain", "gain_low", "gain_high")
    }
    return {**place, "verdict": f.verdict, **numbers, "n": f.n, "unit": f.unit, "null": f.baseline}


def _refusal(scenario: str, subject: str, got: str) -> dict[str, str]:
    return {"scenario": scenario, "subject": subject, "got": got}
