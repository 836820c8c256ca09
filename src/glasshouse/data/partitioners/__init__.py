"""Partitioners of a pool of images into clients, one per file.

``factory(**settings)`` returns a function ``(labels, clients, *, rng)`` that returns one index tensor per
client, disjoint and non-empty.
"""
