"""Scenario tables read from a capture, for a scenario that does not state them."""

from pathlib import Path
from typing import Any

from glasshouse.errors import BadFile
from glasshouse.outside import limits
from glasshouse.scenario.spec import Federation
from glasshouse.store import read_json
from glasshouse.transcript.files import read_index


def captured_tables(capture: Path) -> dict[str, Any]:
    """``captured``, ``federation``, ``model`` and the examples per update of the federation that ran.

    Raises:
        BadFile: the folder is not a capture, or has no update or sum.
    """
    folder = capture / "transcript"
    terms = read_json(folder / "terms.json", most=limits.JSON_BYTES)
    lines = read_index(folder)
    answers = [line for line in lines if line.get("message") in ("update", "aggregate")]
    if not answers:
        raise BadFile(
            f"capture '{capture}'",
            needs="at least one update, or the sum of a round",
            got=f"{len(lines)} other messages",
            fix="capture a round to its end; of secure sums, give watch(strategy, grid) to the workflow",
        )
    stated = {key: value for key, value in terms.items() if key in Federation.model_fields}
    model = terms["architecture"]
    return {
        "captured": str(capture.resolve()),
        "model": {"name": model["name"], **model["arguments"]},
        "federation": {
            **stated,
            "cohort": terms["cohort"] / terms["clients"],
            "rounds": 1 + max(line["round"] for line in answers),
        },
        "data": {"examples": max(1, *(_examples(line) for line in answers))},
    }


def _examples(line: dict[str, Any]) -> int:
    """Number of examples of one client's update; for a sum, the mean per client, rounded up."""
    answered = len(line["selected"]) - len(line["dropped"]) if line["message"] == "aggregate" else 1
    return int(-(-line["examples"] // max(1, answered)))
