"""Distance of a candidate's update from the received one: ghost norms, defences and step orders."""
