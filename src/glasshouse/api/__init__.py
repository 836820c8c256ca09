"""The public functions of ``import glasshouse as gh`` and the command line: audits, checks, attacks, guard.

Each module contains one function with its argument and result types; importing this package imports none.
"""

from typing import Final

AGREED: Final = '"NAME CxHxW CLASSES key=value ...", as "maui_cnn 3x32x32 10 hidden=512"'
"""How an agreed architecture is written in one line."""
