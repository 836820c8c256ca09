"""Calls of attacks on what was recorded: units, claims, isolation, replay."""
