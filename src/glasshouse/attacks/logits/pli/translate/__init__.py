"""Image translations from the public to the private domain, learned on classes that are not private."""
