"""Attacks that read inputs in closed form from the gradient of linear layers."""
