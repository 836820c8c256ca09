"""What a client can see of a model before it trains on it.

``glasshouse.guard(...)`` calls :func:`glasshouse.api.guard.guard`.
"""

from glasshouse import make_callable

make_callable(__name__)
