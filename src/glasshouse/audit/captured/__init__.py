"""Captured real federations: transcripts instead of simulations, test clients' batches as ground truth."""
