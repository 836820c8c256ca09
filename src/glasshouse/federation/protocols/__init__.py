"""Federated learning algorithms, one file each."""
