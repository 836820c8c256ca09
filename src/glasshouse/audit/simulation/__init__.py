"""Turn a scenario into a recorded federation: data, roles, grants, rounds."""
