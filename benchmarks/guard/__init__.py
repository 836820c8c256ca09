"""Benchmarks of the guard: rulings on honest and crafted models, its cost, and the cost of mitigation."""
