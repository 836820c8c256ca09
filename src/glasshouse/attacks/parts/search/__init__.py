"""Optimizers that image attacks share: Adam in a box, L-BFGS for many problems, deep image priors."""
