"""Rules that detect models crafted to leak: one per file, each a function that returns sentences."""
