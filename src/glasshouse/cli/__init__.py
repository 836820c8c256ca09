"""The command line: ``glasshouse audit check list show replay report export compare guard``."""

from glasshouse.cli.main import main

__all__ = ["main"]
