"""Run audits: simulate, attack, score claims against ground truth, compare with nulls, report findings.

``glasshouse.audit(...)`` calls :func:`glasshouse.api.audit.audit`.
"""

from glasshouse import make_callable

make_callable(__name__)
