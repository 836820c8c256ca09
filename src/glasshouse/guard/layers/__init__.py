"""One layer of a model: what each example adds to its update, and which examples stand out in a few rows."""
