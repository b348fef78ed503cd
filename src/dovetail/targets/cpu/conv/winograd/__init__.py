"""Winograd's convolutions, F(m×n, r×r): schemes, their patches, the kernel, and how much a network may round."""
