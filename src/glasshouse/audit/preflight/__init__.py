"""What an audit would refuse, found before anything is simulated; for ``check`` and for ``audit``."""
