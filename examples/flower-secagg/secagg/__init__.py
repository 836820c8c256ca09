"""A Flower app: sums of networks, of which the server sees no single one."""
