"""What the gradients of a language model give away: one file per paper, over three kernels.

``span`` finds what the rows of a gradient span, ``candidates`` which tokens lie in it, and ``prefixes``
(decoders) and ``sentences`` (encoders) put them in order. ``reading`` takes a round apart for them.
"""
