"""Models under audit, one file per family. Weights are drawn inside ``build``'s ``fork_rng``."""
