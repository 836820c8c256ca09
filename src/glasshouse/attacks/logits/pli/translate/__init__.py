"""Translations from the public domain to the private one, learnt on classes that are not private."""
