"""Estimate the cost of an audit: counts of its work, times timings of short probes."""
