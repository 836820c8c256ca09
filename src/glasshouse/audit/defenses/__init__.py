"""Which defences ran in a federation, read off its transcript and compared with what was declared."""
