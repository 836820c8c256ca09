"""Everything on the wire, on disk, and cut to what one adversary may see."""
