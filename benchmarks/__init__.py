"""Benchmarks of speed, memory and attacks; published figures are in docs/results."""
