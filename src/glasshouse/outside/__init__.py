"""Untrusted files: safe reading and size limits."""
