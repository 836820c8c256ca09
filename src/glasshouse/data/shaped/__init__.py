"""Examples of any fixed shape: arrays in numpy archives, volumes in NIfTI files."""
