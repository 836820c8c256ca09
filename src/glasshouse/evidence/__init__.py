"""Evidence that others can check: audits begun, what a run consists of, who signed it. Needs no torch."""
