"""Sentences as numbers: vocabularies and tokenizers."""
