"""Maui (Dabholkar et al. 2025): robust features, a head with sparse activations, and their inversion."""
