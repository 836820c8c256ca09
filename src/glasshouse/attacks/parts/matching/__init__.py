"""How far a candidate is from the received update: distances, ghost norms, defenses and step orders."""
