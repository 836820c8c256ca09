"""Deviating client behaviours, one file each; registered in the group ``glasshouse.behaviours``."""
