"""Controls: an easy setting in which an attack must succeed, and unrelated victims on which it must not."""
