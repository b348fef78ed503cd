"""XLA as a target: plans as traced JAX functions, on one device or on a mesh of them."""

from dovetail.targets.xla.placement import Placement
from dovetail.targets.xla.target import target

__all__ = ["Placement", "target"]
