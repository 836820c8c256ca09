"""Glasshouse: replay what a federated-learning server can see, attack it, and report what came out.

The public modules are listed in docs/api; importing this package loads none of them.
"""

__all__ = ["__version__"]

__version__ = "0.2.0"
