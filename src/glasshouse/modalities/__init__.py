"""Kinds of examples: pictures, sentences, table rows, arrays. One file each; everything else asks them."""
