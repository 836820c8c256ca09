"""Attacks on statistics: sums that differ by one person, curves that only one set of counts explains."""
