"""Attacks on differentially private trees, told the noise."""
