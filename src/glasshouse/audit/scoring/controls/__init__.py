"""An easy setting in which an attack must succeed, and an unrelated victim on whom it must not."""
