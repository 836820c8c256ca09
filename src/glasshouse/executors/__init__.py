"""Executors run the pieces of an audit: on this machine, or elsewhere through a plug-in."""
