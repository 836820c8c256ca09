"""Turn scores per victim into findings, verdicts, corrected p-values of a run, and the state of a policy."""
