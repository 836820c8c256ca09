"""The models under audit: how they are built, loaded and trained."""
