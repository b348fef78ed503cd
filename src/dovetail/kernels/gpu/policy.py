"""Limits of kernels for GPUs that passes and kernels share."""

from __future__ import annotations

WIDEST = 256
"""Features of a head up to which the sums of a warp fit its registers."""
FMA_WIDEST = 128
"""The same without tensor cores, where eight queries of a thread have sums for every sixteenth of them."""
ROTATED_QUERIES = 64
"""Queries up to which an attention rotates keys itself: those of one block."""

__all__ = ["FMA_WIDEST", "ROTATED_QUERIES", "WIDEST"]
