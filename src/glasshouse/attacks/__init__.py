"""The published attacks, one file or folder per paper. They see a view and nothing else."""
