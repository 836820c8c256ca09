"""From claims to findings: judge, nulls, controls, intervals, verdicts, contrasts."""
