"""Attacks on tables: rows are vectors with one 1 per category, which a gradient's span gives away."""
