"""Collectives alone on a mesh of devices, to be timed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dovetail.targets.xla.package import jax, jnp, lax
from dovetail.targets.xla.placement import Placement
from dovetail.targets.xla.run import device_errors, device_mesh

RingStep = Callable[[], object]
"""Runs a compiled program and waits for it."""


def devices_of(placement: Placement) -> str:
    """The devices of a mesh, in words."""
    devices = list(device_mesh(placement).devices.flat)
    return f"{len(devices)} × {devices[0].device_kind}"


def compiled(placement: Placement, kind: str, axis: str, bytes: int, turns: int) -> tuple[Any, Any]:
    """A program of several collectives, one after the other, whose results have this many bytes; and its argument."""
    mesh, count = device_mesh(placement), placement.sizes[axis]
    elements = max(bytes // 4, count)
    local = elements if kind == "all-reduce" else elements // count
    spec = jax.sharding.PartitionSpec(axis)

    def collective(x: Any) -> Any:
        return lax.psum(x, axis) if kind == "all-reduce" else lax.all_gather(x, axis, tiled=True)[-local:]

    def chain(x: Any) -> Any:
        # XLA may leave out a sum of what is the same on all devices.
        own = 1.0 + lax.axis_index(axis).astype(jnp.float32)
        for _ in range(turns):
            x = collective(x * own) * own
        return x

    with device_errors():
        array = jax.device_put(jnp.zeros(local * count, jnp.float32), jax.sharding.NamedSharding(mesh, spec))
        function = jax.jit(jax.shard_map(chain, mesh=mesh, in_specs=spec, out_specs=spec))
        return function.lower(array).compile(), array


def program(placement: Placement, kind: str, axis: str, bytes: int, turns: int) -> RingStep:
    """Return the compiled collective as a callable."""
    function, array = compiled(placement, kind, axis, bytes, turns)
    return lambda: jax.block_until_ready(function(array))


__all__ = ["RingStep", "compiled", "devices_of", "program"]
