"""Joins claim and truth: simulate, attack, score, compare with nulls, report findings."""
