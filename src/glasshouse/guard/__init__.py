"""What a client can see of a model before it trains on it."""
