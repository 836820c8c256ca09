"""A Flower app: a small network on handwritten digits."""
