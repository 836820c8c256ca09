"""Recover inputs of linear layers from gradients, and from sums of gradients, in closed form."""
