"""The gate between a SuperNode and its SuperLink: a process of its own; nothing inside Flower is replaced."""
