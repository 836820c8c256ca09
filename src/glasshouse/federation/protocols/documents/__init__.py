"""Protocols whose messages are documents: trees, statistics, survival times, sums."""
