"""The verdict of a run in words: deciding findings, headline, stories per scenario, policy."""
