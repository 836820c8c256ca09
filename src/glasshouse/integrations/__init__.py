"""Adapters to frameworks with which real federations run. Nothing else of Glasshouse imports them."""
