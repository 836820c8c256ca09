"""Findings about files as SARIF 2.1.0, which code-hosting services show beside a change.

Source: OASIS, "Static Analysis Results Interchange Format (SARIF) Version 2.1.0", sections 3.13 (sarifLog)
to 3.27 (result).
"""

import hashlib
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from glasshouse import __version__
from glasshouse.outside.text import visible

__all__ = ["RULE", "sarif"]

RULE: Final = "glasshouse/received-model"
_SCHEMA: Final = "https://json.schemastore.org/sarif-2.1.0.json"


def sarif(findings: Mapping[Path, Sequence[str]]) -> dict[str, Any]:
    """A log with one result per sentence about a file; a file without any was looked at and is listed.

    Args:
        findings: file → why a client should not train on it.

    Examples:
        >>> log = sarif({Path("a.pt"): ["2 rows repeat"], Path("b.pt"): []})
        >>> [r["message"]["text"] for r in log["runs"][0]["results"]], len(log["runs"][0]["artifacts"])
        (['2 rows repeat'], 2)
    """
    rule = {
        "id": RULE,
        "name": "ReceivedModel",
        "shortDescription": {"text": "A model that honest training does not make"},
        "fullDescription": {
            "text": "Weights or structure of a received model would let its sender read single examples "
            "out of an update. That a model passes is no proof that it is honest."
        },
        "defaultConfiguration": {"level": "error"},
    }
    driver = {"name": "glasshouse guard", "semanticVersion": __version__, "rules": [rule]}
    places = [_place(path) for path in findings]
    run = {
        "tool": {"driver": driver},
        "artifacts": [{"location": place} for place in places],
        "results": [
            _result(sentence, place, index)
            for index, (place, sentences) in enumerate(zip(places, findings.values(), strict=True))
            for sentence in sentences
        ],
    }
    return {"$schema": _SCHEMA, "version": "2.1.0", "runs": [run]}


def _result(sentence: str, place: Mapping[str, str], index: int) -> dict[str, Any]:
    text = visible(sentence)
    fingerprint = hashlib.sha256(f"{place['uri']}\n{text}".encode()).hexdigest()
    return {
        "ruleId": RULE,
        "ruleIndex": 0,
        "level": "error",
        "message": {"text": text},
        "locations": [{"physicalLocation": {"artifactLocation": {**place, "index": index}}}],
        "partialFingerprints": {"sentence/v1": fingerprint},
    }


def _place(path: Path) -> dict[str, str]:
    """A path as a URI: relative where it is, so that a service finds the file in its checkout."""
    return {"uri": path.as_uri() if path.is_absolute() else quote(os.fsencode(path.as_posix()))}
