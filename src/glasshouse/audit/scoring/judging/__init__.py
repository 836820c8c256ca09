"""What scores are worth: controls, certificates, verdicts, contrasts, power, limits of a policy."""
