"""What is compared with the site's own examples before it leaves, and the process that does it."""
