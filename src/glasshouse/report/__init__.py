"""Human-readable reports of an audit: an HTML page, a terminal summary, a comparison of two runs.

Depends only on ``glasshouse.results.records`` and works without torch. Importing this package
imports none of it.
"""
