"""Code shared by several attacks: the received model, label inference, gradient matching, optimizers."""
