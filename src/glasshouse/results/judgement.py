"""Which findings may speak for a whole run: primary ones, and after the correction for how many there are."""

from collections.abc import Sequence
from typing import Final

from glasshouse.results.records import Finding

ALPHA: Final = 0.05
"""Holm's level over the primary findings of a run, and over the victims of a cell."""
ONE_SIDE: Final = 0.025
"""Share of the findings without any leak whose 95 % interval lies above 0 by luck."""


def expected_by_luck(finding: Finding) -> bool:
    """A primary finding whose interval lies above 0, but which does not survive Holm's correction."""
    return finding.verdict == "leaks" and finding.p_adjusted is not None and finding.p_adjusted >= ALPHA


def leaking_victims(finding: Finding) -> tuple[str, ...]:
    """Names of the victims whose own example the claim matches better than held-out ones."""
    return tuple(v.name for v in finding.victims if v.leaks)


def primaries(findings: Sequence[Finding]) -> list[Finding]:
    """The findings that decide headline and exit code; of a result that marks none, all of them."""
    return [f for f in findings if f.primary] or list(findings)
