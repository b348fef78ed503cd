"""JAX, imported in this room alone, and what differs between its versions."""

from __future__ import annotations

from contextlib import AbstractContextManager
from importlib import import_module
from typing import Any

from dovetail.errors import UnsupportedError

OLDEST = "0.8"
"""The oldest JAX that is tested."""


def _imported(name: str) -> Any:
    try:
        return import_module(name)
    except ImportError as error:
        raise UnsupportedError(
            f'target="xla" needs JAX, and {error}', hint=f"python -m pip install 'dovetail-ml[xla]', or jax>={OLDEST}"
        ) from error


jax: Any = _imported("jax")
jax_export: Any = _imported("jax.export")
jnp: Any = _imported("jax.numpy")
lax: Any = _imported("jax.lax")
serialize_executable: Any = _imported("jax.experimental.serialize_executable")


def wide_types() -> AbstractContextManager[Any]:
    """While it is entered, i64 and f64 are what a graph says; JAX would make i32 and f32 of them."""
    home = jax if hasattr(jax, "enable_x64") else _imported("jax.experimental")
    return home.enable_x64(True)


def gathered(array: Any) -> Any:
    """The arrays of all processes, each in a row of its own."""
    return _imported("jax.experimental.multihost_utils").process_allgather(array)


__all__ = ["OLDEST", "gathered", "jax", "jax_export", "jnp", "lax", "serialize_executable", "wide_types"]
