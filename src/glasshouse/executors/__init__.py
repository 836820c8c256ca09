"""Where the pieces of an audit run: on this machine, or wherever a plug-in takes them."""
