"""What happened. Only ``audit.score`` reads it; attacks cannot import it."""
