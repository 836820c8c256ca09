"""Paired-logits inversion."""
