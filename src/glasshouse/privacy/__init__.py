"""What differential privacy promises about attacks, and what a single run shows of it and of other defences."""
