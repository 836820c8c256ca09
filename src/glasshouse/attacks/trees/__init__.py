"""Attacks on boosted trees: sums of derivatives are counts, thresholds are values, leaves intersect."""
