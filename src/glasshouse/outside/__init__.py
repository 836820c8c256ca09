"""Files that somebody else may have written: how they are opened, and how large they may be."""
