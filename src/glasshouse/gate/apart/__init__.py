"""Messages that uploaded code made are opened and judged in processes of their own, under limits."""
