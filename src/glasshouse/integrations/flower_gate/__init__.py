"""The gate between a SuperNode and its SuperLink: a process of its own; Flower stays as it is."""
