"""Inspection of a received model's behaviour on the client's own batch, which is hard to disguise."""
