"""Ways to cut a pool of images into clients; one file each.

A partitioner is called ``factory(**settings)`` and is then a function ``(labels, clients, *, rng)``
that returns one index tensor per client, disjoint and not empty.
"""
