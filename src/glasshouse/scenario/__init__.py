"""Scenarios: an audit's configuration as frozen data, read from TOML; all errors are reported at once."""
