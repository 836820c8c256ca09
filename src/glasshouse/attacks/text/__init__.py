"""Attacks on gradients of language models: one file per paper, over shared modules.

``span`` computes the span of a gradient's rows and the tokens that lie in it, and ``prefixes``
(decoders) and ``sentences`` (encoders) order them. ``reading`` splits a round into updates for them.
"""
