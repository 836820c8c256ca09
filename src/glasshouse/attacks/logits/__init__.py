"""Attacks on protocols that exchange logits on public data."""
