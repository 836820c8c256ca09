"""Images: where they come from, which role gets which, and who holds what."""
