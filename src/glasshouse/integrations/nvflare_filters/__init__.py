"""What FLARE's configuration files declare of its privacy filters; needs no FLARE."""
