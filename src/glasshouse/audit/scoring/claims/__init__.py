"""How claims become numbers per victim: one scorer for each kind, and what they share."""
