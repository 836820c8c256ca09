"""What a whole run comes to: an exit code, from its limits, guarantees and controls."""

from typing import Final

from glasshouse.results.judgement import primaries
from glasshouse.results.records import Result

__all__ = ["HELD", "NOT_SHOWN", "POLICY_BROKEN", "exit_code"]

HELD, POLICY_BROKEN, NOT_SHOWN = 0, 1, 3
_HOLDS: Final = "holds"


def exit_code(result: Result) -> int:
    """0: every limit was shown to hold; 1: a limit is broken, a guarantee or a proof is wrong; 3: not shown.

    Not shown: a limit is undecided or unmeasured, a scenario has no attack with power, or no findings.
    """
    states = {limit.state for limit in result.limits}
    impossible = any(f.bound is not None and f.bound.contradicted for f in result.findings)
    impossible |= any(one.contradicted for one in result.epsilons) or any(p.refuted for p in result.proofs)
    if "broken" in states or impossible:
        return POLICY_BROKEN
    deciding = primaries(result.findings)
    powerless = {f.scenario for f in deciding} - {f.scenario for f in deciding if f.verdict != "no power"}
    return NOT_SHOWN if states - {_HOLDS} or powerless or not result.findings else HELD
