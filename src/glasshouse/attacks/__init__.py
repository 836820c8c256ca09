"""The published attacks, one file or folder per paper. An attack's only input is a view."""
