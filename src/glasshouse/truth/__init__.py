"""Ground truth of a simulation. Only ``audit.score`` reads it; attacks cannot import it."""
