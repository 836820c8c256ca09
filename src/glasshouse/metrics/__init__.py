"""Metrics that score claims: pure functions of tensors, independent of files, scenarios and attacks."""
