"""Limits of kernels for GPUs that passes and kernels share."""

from __future__ import annotations

WIDEST = 256
"""Features of a head up to which the sums of a warp fit its registers."""
ROTATED_QUERIES = 64
"""Queries up to which an attention rotates keys itself: those of one block."""

__all__ = ["ROTATED_QUERIES", "WIDEST"]
