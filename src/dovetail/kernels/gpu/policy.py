"""Limits of kernels for GPUs that passes and kernels share."""

from __future__ import annotations

WIDEST = 256
"""Features of a head up to which the sums of a warp fit its registers."""

__all__ = ["WIDEST"]
