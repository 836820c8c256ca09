"""Numbers for claims: pure functions of tensors, without files, scenarios or attacks."""
