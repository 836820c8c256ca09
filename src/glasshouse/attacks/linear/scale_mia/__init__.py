"""Scale-MIA (Shi et al. 2025): latent representations out of a sum, then a decoder."""
