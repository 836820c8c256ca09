"""What the gradients of a language model give away: one file per paper, over three kernels.

``span`` finds what the rows of a gradient span, ``embedding`` which tokens lie in it, and ``prefixes`` and ``sentences``
put the tokens in order with the first blocks that ``transformer`` reads from the tensors of a model.
"""
