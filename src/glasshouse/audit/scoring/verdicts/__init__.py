"""From numbers per victim to findings, verdicts, the family of a run, and the state of a policy."""
