"""Figures that accompany the numbers of an audit, registered as entry points; one file per attack family."""
