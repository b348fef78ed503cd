"""Which operands of a kernel come to shared memory before they are needed: constants that are small, such as gains."""

from __future__ import annotations

from collections.abc import Mapping

from dovetail.ir.dim import product
from dovetail.ir.value import Value
from dovetail.kernels.loops.composed import COPY_BYTES
from dovetail.kernels.loops.ir import Alloc
from dovetail.kernels.spec import TensorLocations
from dovetail.plan.alias import is_dense

AHEAD_BYTES = 16 << 10
"""Bytes of such a constant, at most."""


def rooms_of_constants(bindings: Mapping[str, Value], locations: TensorLocations) -> dict[str, Alloc]:
    """Shared memory for each of some operands that is constant and small."""
    found: dict[str, Alloc] = {}
    for name, value in bindings.items():
        at, count = locations(value), product(value.shape)
        if not locations.is_constant(value) or not isinstance(count, int):
            continue
        nbytes = count * value.dtype.itemsize
        fits = 0 < nbytes <= AHEAD_BYTES and nbytes % COPY_BYTES == 0 and is_dense(value.tensor, at.strides)
        if fits and locations.alignment({name: value})[name] % COPY_BYTES == 0:
            found[name] = Alloc(f"ahead_{name}", value.dtype, count, "shared")
    return found


__all__ = ["rooms_of_constants"]
