"""Data sets: sources, roles (private, auxiliary, held-out, public), and partition into clients."""
