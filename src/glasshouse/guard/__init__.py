"""The client's guard: inspection of a received model and of the client's own updates.

``glasshouse.guard(...)`` calls :func:`glasshouse.api.guard.guard`.
"""

from glasshouse import make_callable

make_callable(__name__)
