"""Private inputs from one client's update: gradient matching and closed forms, one file per paper."""
