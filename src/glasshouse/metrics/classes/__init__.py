"""Metrics of claims about classes: whose face, or which digit, a picture is."""
