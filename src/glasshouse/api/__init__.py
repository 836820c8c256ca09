"""The public functions of ``import glasshouse as gh`` and the command line: audits, checks, attacks, guard.

Each module contains one function with its argument and result types; importing this package imports none.
"""
