"""Winograd convolution, F(2×2, 3×3) and F(4×4, 3×3)."""
