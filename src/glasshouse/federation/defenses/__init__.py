"""Defences of the clients, one file each; registered in the group ``glasshouse.defenses``."""
