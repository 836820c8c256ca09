"""Descriptions of results in words: cards of plug-ins, threat cards, how numbers were chosen."""
