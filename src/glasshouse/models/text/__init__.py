"""Models that read sentences."""
