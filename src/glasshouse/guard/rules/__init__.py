"""What marks a model that was made to leak: one rule per file, each a function that returns sentences."""
