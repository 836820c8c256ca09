"""GGL: search the latent space of a generator for the image whose transformed gradient fits (Li et al. 2022)."""
