"""Scenarios: an audit's configuration as frozen data, read from TOML; all errors are reported at once.

``glasshouse.scenario(...)`` calls :func:`glasshouse.scenario.load.from_dict`.
"""

from glasshouse import make_callable

make_callable(__name__)
