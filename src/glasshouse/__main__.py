"""``python -m glasshouse``: the command line."""

from glasshouse.cli import main

main()
