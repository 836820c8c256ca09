"""What a received model does to a client's own batch: weights can be disguised, behaviour cannot."""
