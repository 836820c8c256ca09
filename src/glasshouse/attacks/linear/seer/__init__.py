"""SEER (Garov et al. 2024): a model and a secret decoder, trained together to single out one example."""
