"""Adapters to frameworks of real federations. No other part of Glasshouse imports them."""
