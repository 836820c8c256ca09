"""What several attacks share: the model as received, label inference, gradient matching, optimizers."""
