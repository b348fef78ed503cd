"""Several processes as one machine for XLA, by JAX's own distributed runtime."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import numpy as np

from dovetail.errors import DeviceError, PeerError
from dovetail.targets.xla.package import gathered, jax

_ROOM = 2048
"""Bytes in which a process says what it has."""


def join(address: str, hosts: int, rank: int, *, timeout: float, joining: float) -> None:
    """Meet the other processes; afterwards `jax.devices()` has the devices of all of them.

    A process that was silent for `timeout` seconds is lost, and JAX ends the others.
    """
    if "cpu" in os.environ.get("JAX_PLATFORMS", "cpu"):
        jax.config.update("jax_cpu_collectives_implementation", "gloo")
    try:
        jax.distributed.initialize(
            address,
            num_processes=hosts,
            process_id=rank,
            cluster_detection_method="deactivate",  # it would leave one device of each host
            initialization_timeout=max(int(joining), 1),
            heartbeat_timeout_seconds=max(int(timeout), 1),
        )
    except (RuntimeError, ValueError, jax.errors.JaxRuntimeError) as error:
        first = str(error).strip().splitlines()[0]
        raise DeviceError(f"rank {rank} did not meet its peers at {address}: {first}", hint="start it again") from error


def compare(facts: Mapping[str, str]) -> None:
    """Refuse to go on where processes differ in what all must have in common."""
    text = json.dumps({"host": socket.gethostname(), **facts}).encode()[:_ROOM].ljust(_ROOM)
    try:
        said: Any = gathered(np.frombuffer(text, np.uint8))
    except (RuntimeError, ValueError, jax.errors.JaxRuntimeError) as error:
        line = str(error).strip().splitlines()[0]
        raise DeviceError(f"a peer was lost before the first step: {line}", hint="start it again") from error
    listed: list[dict[str, str]] = [json.loads(bytes(one)) for one in np.asarray(said, np.uint8).reshape(-1, _ROOM)]
    first = listed[0]
    for rank, other in enumerate(listed):
        for name in sorted(facts):
            if first.get(name) != other.get(name):
                raise PeerError(
                    f"rank {rank} on {other['host']} has {name} {other.get(name, 'none')}, "
                    f"and rank 0 on {first['host']} has {first.get(name, 'none')}",
                    rank=rank,
                    host=str(other["host"]),
                    hint="start all ranks with one command",
                )


def leave() -> None:
    """Wait until the other processes are done, too: they may still need this one."""
    with suppress(RuntimeError, jax.errors.JaxRuntimeError):
        jax.distributed.shutdown()


__all__ = ["compare", "join", "leave"]
