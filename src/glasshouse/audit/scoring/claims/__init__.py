"""Turn claims into scores per victim: one scorer for each kind of claim, and shared code."""
