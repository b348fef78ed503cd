"""Checkpoints: one safetensors file with weights, their state and where training is; whole, or not there."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping

import numpy as np

from dovetail.errors import LoadError
from dovetail.frontends.safetensors import DTYPES, read_safetensors
from dovetail.ir.dtype import of_numpy
from dovetail.ir.literal import Array
from dovetail.ir.whole_file import write_whole

_NAMES = {dtype: name for name, dtype in DTYPES.items()}


def write_arrays(path: str | os.PathLike[str], arrays: Mapping[str, Array]) -> None:
    """Write arrays to a file next to it, and rename: a process that is killed leaves the file that was there."""
    header: dict[str, object] = {}
    end = 0
    dense = {name: np.ascontiguousarray(a) for name, a in sorted(arrays.items())}
    for name, array in dense.items():
        start, end = end, end + array.nbytes
        dtype = of_numpy(array.dtype)
        if dtype is None or dtype not in _NAMES:
            raise LoadError(f"{name} is {array.dtype}, which a checkpoint cannot hold", hint="train floats")
        kind = _NAMES[dtype]
        header[name] = {"dtype": kind, "shape": list(array.shape), "data_offsets": [start, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    contents = [array.reshape(-1).view(np.uint8).data for array in dense.values()]
    write_whole(path, [len(text).to_bytes(8, "little"), text, *contents])


def read_arrays(path: str | os.PathLike[str], like: Mapping[str, Array]) -> dict[str, Array]:
    """Read the arrays of a file, which must have the names, shapes and dtypes of `like`."""
    stored = read_safetensors(path)
    missing, more = [n for n in like if n not in stored], [n for n in stored if n not in like]
    if missing or more:
        differences = [
            f"misses {', '.join(missing[:5])}" if missing else "",
            f"has {', '.join(more[:5])}" if more else "",
        ]
        raise LoadError(
            f"the checkpoint is of another model or optimizer: it {' and '.join(t for t in differences if t)}",
            where=str(path),
            hint="resume with the graph and the optimizer that wrote it",
        )
    for name, array in like.items():
        if stored[name].shape != array.shape or stored[name].dtype != array.dtype:
            raise LoadError(
                f"{name} is {stored[name].dtype}{list(stored[name].shape)} in the checkpoint, "
                f"and {array.dtype}{list(array.shape)} in the model",
                where=str(path),
                hint="resume with the graph and the optimizer that wrote it",
            )
    return stored


__all__ = ["read_arrays", "write_arrays"]
