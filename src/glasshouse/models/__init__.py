"""The models under audit: building, loading and training."""
