"""Joins claim and truth: simulate, attack, score, compare with nulls, report findings.

``glasshouse.audit(...)`` calls :func:`glasshouse.api.audit.audit`.
"""

from glasshouse import make_callable

make_callable(__name__)
