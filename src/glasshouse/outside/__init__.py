"""Untrusted files and texts: safe reading, size limits, and one sanitiser for whatever is shown."""
