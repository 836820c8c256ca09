"""What makes the pages of docs/results, beside the presets."""
