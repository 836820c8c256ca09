"""Captured real federations: a transcript instead of a simulation, batches of test clients as ground truth."""
