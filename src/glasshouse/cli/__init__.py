"""The command line: ``glasshouse audit check list show replay report compare``."""

from glasshouse.cli.main import main

__all__ = ["main"]
