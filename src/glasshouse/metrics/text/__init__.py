"""Metrics of claimed sentences and tokens."""
