"""Turn claims into findings: judge, nulls, controls, intervals, verdicts, contrasts."""
