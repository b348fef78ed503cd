"""Executables of XLA in the cache, keyed by the program, the devices and the versions of JAX."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from importlib.metadata import version
from typing import Any

from dovetail.targets.runtime.building.store import CodeStore, StoreKey
from dovetail.targets.xla.package import jax, serialize_executable

KIND = "xla"
"""Of the entries that hold executables."""
_FLAGS = ("XLA_FLAGS", "LIBTPU_INIT_ARGS")


def key_of(lowered: Any, devices: Sequence[Any], scopes: str = "") -> StoreKey:
    """All that decides an executable: the module has the placements, and its text changes with every meaning.

    `scopes` stands for the named ones: an executable names its kernels by those that it was compiled with.
    """
    text = lowered.as_text().encode()
    return StoreKey(
        KIND,
        {
            "program": hashlib.blake2b(text, digest_size=20).hexdigest(),
            "scopes": scopes,
            "devices": repr([(d.id, d.device_kind) for d in devices]),
            "jax": version("jax"),
            "jaxlib": version("jaxlib"),
            **{flag: os.environ.get(flag, "") for flag in _FLAGS},
        },
    )


def compiled_or_kept(
    function: Any, arguments: Sequence[Any], devices: Sequence[Any], store: CodeStore | None, scopes: str
) -> Any:
    """The executable of a function for arguments: the one of the cache, or a new one that is put there.

    Executables that call back into Python, or of several processes, are compiled every time.
    """
    lowered = function.lower(*arguments)
    if store is None or jax.process_count() > 1:
        return lowered.compile()
    key = key_of(lowered, devices, scopes)
    content = store.get(key)
    compiled = None if content is None else _loaded(arguments, devices, content)
    if compiled is None:
        compiled = lowered.compile()
        content = _bytes(compiled)
        if content is not None:
            store.put(key, content)
    return compiled


def _loaded(arguments: Sequence[Any], devices: Sequence[Any], content: bytes) -> Any:
    """An executable of the cache; None where this JAX cannot load it. Such an entry is as good as none."""
    count, _, rest = content.partition(b"\n")
    trees = jax.tree_util
    # The structure of the results is two lists: outputs and flags.
    outputs, flags = map(int, count.split())
    results = trees.tree_structure(([0] * outputs, [0] * flags))
    try:
        return serialize_executable.deserialize_and_load(
            rest, trees.tree_structure((tuple(arguments), {})), results, execution_devices=list(devices)
        )
    except Exception:  # whatever an entry of another build makes JAX raise
        return None


def _bytes(compiled: Any) -> bytes | None:
    """An executable as bytes; None where JAX cannot write it."""
    try:
        content, _, results = serialize_executable.serialize(compiled)
    except (AttributeError, ValueError, NotImplementedError, TypeError, jax.errors.JaxRuntimeError):
        return None
    outputs, flags = jax.tree_util.tree_unflatten(results, range(results.num_leaves))
    return b"%d %d\n" % (len(outputs), len(flags)) + content


__all__ = ["KIND", "compiled_or_kept", "key_of"]
