"""Shipped attacks in disguise, judged by the guard: a test set."""
