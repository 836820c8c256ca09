"""Benchmarks of speed, memory and the guard."""
