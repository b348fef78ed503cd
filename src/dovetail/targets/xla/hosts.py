"""Several processes as one machine for XLA, by JAX's own distributed runtime."""

from __future__ import annotations

import os

from dovetail.errors import DeviceError
from dovetail.targets.xla.package import jax

_LONG = 100_000
"""Seconds: supervisors find a lost process first, where JAX would abort this one."""


def join(address: str, hosts: int, rank: int, seconds: float) -> None:
    """Meet the other processes; afterwards `jax.devices()` has the devices of all of them."""
    if "cpu" in os.environ.get("JAX_PLATFORMS", "cpu"):
        jax.config.update("jax_cpu_collectives_implementation", "gloo")
    try:
        jax.distributed.initialize(
            address,
            num_processes=hosts,
            process_id=rank,
            initialization_timeout=max(int(seconds), 1),
            heartbeat_timeout_seconds=_LONG,
        )
    except (RuntimeError, ValueError, jax.errors.JaxRuntimeError) as error:
        first = str(error).strip().splitlines()[0]
        raise DeviceError(f"rank {rank} did not meet its peers at {address}: {first}", hint="start it again") from error


__all__ = ["join"]
