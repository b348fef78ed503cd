"""XLA as a target: plans as traced JAX functions, on one device or on a mesh of them.

`target`, with `claims`; `trace` has values as traced arrays, by `meanings`; `run` compiles and runs (`kept` between
processes), on `arrays` of devices and `hosts`. Meshes: `placement`, `presets`, and why there is which collective:
`explain`. For others: `export`; compiled programs as text: `hlo`. `package` imports JAX.
"""

from dovetail.targets.xla.placement import Placement
from dovetail.targets.xla.target import target

__all__ = ["Placement", "target"]
