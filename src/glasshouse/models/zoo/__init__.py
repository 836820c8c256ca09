"""Models under audit, one file per family. Their random draws happen inside ``build``'s ``fork_rng``."""
