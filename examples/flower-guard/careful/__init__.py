"""A Flower app: clients that look before they train, and before they send."""
