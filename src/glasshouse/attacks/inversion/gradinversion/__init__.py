"""GradInversion (GI): gradient matching with priors and a consensus of several seeds.

Source: Yin et al. 2021, "See through Gradients", CVPR, arXiv:2104.07586.
"""
