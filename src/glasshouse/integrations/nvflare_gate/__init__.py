"""The gate for NVIDIA FLARE, as a plug-in that needs no FLARE to be named."""
