"""``python -m glasshouse``: the command line."""

from glasshouse.cli import main

if __name__ == "__main__":
    main()
