"""What is simulated and measured, as frozen data: TOML in, every mistake named at once."""
