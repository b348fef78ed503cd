"""The CPU: kernels that are compiled on the spot, and NumPy where there is none yet."""

from __future__ import annotations

from dovetail.targets.cpu.claims import claims
from dovetail.targets.cpu.native import NativeGraph
from dovetail.targets.target import Target

TARGET = Target("cpu", claims, NativeGraph, any_size=True)

__all__ = ["TARGET"]
