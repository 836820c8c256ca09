"""What differential privacy promises about attacks, what a single run shows of it, and the marks of defences."""
