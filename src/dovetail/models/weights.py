"""Numbers for the parameters of a model that came without."""

from __future__ import annotations

import zlib
from collections.abc import Mapping

import numpy as np

from dovetail.errors import GraphError
from dovetail.ir.dim import substitute
from dovetail.ir.graph import Graph
from dovetail.ir.literal import Array
from dovetail.ir.type import type_symbols


def random_weights(graph: Graph, seed: int = 0, sizes: Mapping[str, int] | None = None) -> dict[str, Array]:
    """Return small random numbers for every parameter, the same for one name, type and seed. `sizes` are of symbols."""
    weights: dict[str, Array] = {}
    for value in graph.parameters:
        name, type = str(value.attrs["name"]), value.tensor
        known = [substitute(size, sizes or {}) for size in type.shape]
        shape = tuple(size for size in known if isinstance(size, int))
        if len(shape) != type.rank:
            named = " ".join(f"--size {name}=…" for name in sorted(type_symbols(type)))
            raise GraphError(f"the parameter {name} is {type}", hint=f"give its sizes numbers: {named}")
        rng = np.random.default_rng((seed, zlib.crc32(name.encode())))
        # Variances and gains must be positive and near 1 for a model to stay in range.
        spread = 0.02 if len(shape) > 1 else 0.1
        centre = 1.0 if name.endswith(("gain", "variance")) else 0.0
        weights[name] = (centre + spread * rng.standard_normal(shape)).astype(type.dtype.numpy)
    return weights
