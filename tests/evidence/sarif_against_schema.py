"""Validate what the guard writes against OASIS's schema of SARIF 2.1.0, which a weekly job fetches.

``python -m tests.evidence.sarif_against_schema schema.json``; exit code 1 where the schema refuses a log, or
takes a spoiled one.
"""

import copy
import json
import sys
from pathlib import Path

from jsonschema import FormatChecker
from jsonschema.validators import validator_for

from glasshouse.report.sarif import sarif


def main(schema: Path) -> int:
    """Print what the schema refuses."""
    rules = json.loads(schema.read_text(encoding="utf-8"))
    validator = validator_for(rules)(rules, format_checker=FormatChecker())
    log = sarif({Path("models/a b.pt"): ["2 rows repeat", "1 kernel is zero"], Path("fine.pt"): []})
    spoiled = copy.deepcopy(log)
    spoiled["runs"][0]["results"][0]["level"] = "fatal"
    errors = [error.message for error in validator.iter_errors(log)]
    print("\n".join(errors) or "the schema takes it")
    return int(bool(errors) or not list(validator.iter_errors(spoiled)))


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
