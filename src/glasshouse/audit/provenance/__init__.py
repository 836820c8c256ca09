"""What a run rests on: hashes of its files, digests of code, its manifest and its stamp."""
