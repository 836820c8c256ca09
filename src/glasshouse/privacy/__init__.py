"""What differential privacy promises about attacks; what a single run shows of it, and of other defences."""
