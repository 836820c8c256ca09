"""What ``import glasshouse as gh`` offers, and the command line calls: audits, checks, attacks, the guard.

Each module holds one function with what it takes and returns; nothing is imported by naming this package.
"""
