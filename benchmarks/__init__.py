"""Speed and memory, measured side by side; see docs/results for figures that were kept."""
