"""What is drawn beside the numbers: one file per family of attacks, found through entry points."""
