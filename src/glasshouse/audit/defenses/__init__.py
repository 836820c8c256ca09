"""Detect which defences ran in a federation from its transcript, and compare them with the declared ones."""
