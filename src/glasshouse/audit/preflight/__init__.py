"""Find everything that an audit would refuse, before simulating anything; for ``check`` and ``audit``."""
