"""From a scenario to a recorded federation: data, roles, grants, rounds."""
