"""All messages of a federation, on disk, and restricted to what one adversary may see."""
