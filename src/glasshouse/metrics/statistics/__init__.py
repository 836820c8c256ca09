"""Intervals, exact tests and corrections for many findings."""
