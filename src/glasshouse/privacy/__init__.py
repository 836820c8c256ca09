"""Upper bounds on attacks from differential privacy, and lower bounds on ε from a single run."""
