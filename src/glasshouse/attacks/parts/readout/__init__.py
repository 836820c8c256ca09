"""Inputs of linear layers, read from gradients and their sums in closed form."""
