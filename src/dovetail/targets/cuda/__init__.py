"""NVIDIA GPUs, as passes see it."""
