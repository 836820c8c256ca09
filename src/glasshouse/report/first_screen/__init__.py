"""What a reader without background sees first: a sentence, what was tested, and a card per leak."""
