"""GGL: search a generator's latent space for the image whose transformed gradient fits (Li et al. 2022)."""
