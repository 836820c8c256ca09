"""The command line: ``glasshouse audit check list show replay report export compare guard attest verify``."""

from glasshouse.cli.main import main

__all__ = ["main"]
