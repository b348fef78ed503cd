"""onnxruntime as a second opinion: the same model, the same inputs."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import numpy as np

from dovetail.errors import CheckError, OptionError
from dovetail.ir.literal import Array


class Peer:
    """A model as onnxruntime runs it on the CPU."""

    def __init__(self, path: str | os.PathLike[str], *, threads: int = 0) -> None:
        """`threads` is how many it may use; 0 leaves that to it."""
        try:
            import onnxruntime  # pyright: ignore[reportMissingTypeStubs]
        except ImportError as error:
            raise OptionError(
                "onnxruntime is not installed", hint="add it with: python -m pip install onnxruntime"
            ) from error
        runtime: Any = onnxruntime
        options = runtime.SessionOptions()
        options.log_severity_level = 3  # warnings about the model are not about us
        options.intra_op_num_threads = threads
        self.name = Path(path).name
        try:
            self._session = _session(runtime, path, options)
        except Exception as error:  # its errors have no common base
            raise CheckError(
                f"onnxruntime {runtime.__version__} does not load {self.name}: {_first(error)}",
                hint="run without the check, or install a newer onnxruntime",
            ) from error

    @property
    def inputs(self) -> frozenset[str]:
        """The names of the inputs that it takes."""
        return frozenset(i.name for i in self._session.get_inputs())

    @property
    def dtypes(self) -> dict[str, np.dtype[Any]]:
        """The dtype of each input, where NumPy has it."""
        named = {i.name: _SPELLED.get(i.type) for i in self._session.get_inputs()}
        return {name: np.dtype(dtype) for name, dtype in named.items() if dtype is not None}

    def run(self, feeds: Mapping[str, Array]) -> dict[str, Array]:
        """The outputs by name."""
        names = [o.name for o in self._session.get_outputs()]
        try:
            results = self._session.run(names, dict(feeds))
        except Exception as error:
            raise CheckError(
                f"onnxruntime does not run {self.name}: {_first(error)}", hint="run without the check"
            ) from error
        return {name: _as_array(result) for name, result in zip(names, results, strict=True)}


def _as_array(result: Any) -> Any:
    """A list of maps, as ZipMap gives it, as a matrix: rows of the scores of all labels."""
    rows: list[Any] = cast(list[Any], result) if isinstance(result, list) else []
    if rows and all(isinstance(row, dict) for row in rows):
        return np.array([list(row.values()) for row in rows], np.float32)
    return cast(Any, result)


def _session(runtime: Any, path: str | os.PathLike[str], options: Any) -> Any:
    """A session; a file whose format version is too new for this onnxruntime is given as one of an older version.

    Versions of the format added types and metadata; a file that uses none of them reads the same in an older one.
    """
    providers = ["CPUExecutionProvider"]
    try:
        return runtime.InferenceSession(str(path), options, providers=providers)
    except Exception as error:
        newest = re.search(r"max supported IR version:\s*(\d+)", str(error), re.IGNORECASE)
        if newest is None or (found := _older(path, int(newest[1]))) is None:
            raise
    options.add_session_config_entry("session.model_external_initializers_file_folder_path", str(Path(path).parent))
    return runtime.InferenceSession(found, options, providers=providers)


def _older(path: str | os.PathLike[str], version: int) -> bytes | None:
    """The model with another version of the format; None where the version is no longer known to be first in it."""
    content = Path(path).read_bytes()
    if content[:1] != b"\x08" or len(content) < 2 or content[1] > 127:
        return None
    return content[:1] + bytes([version]) + content[2:]


_SPELLED = {
    "tensor(float)": "float32",
    "tensor(double)": "float64",
    "tensor(float16)": "float16",
    "tensor(bool)": "bool",
    **{f"tensor({sign}int{bits})": f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)},
}
"""How onnxruntime spells the types of inputs."""


def _first(error: Exception) -> str:
    """The first line of a message, without the signature of the C++ function that raised it."""
    line = (str(error).splitlines() or [type(error).__name__])[0]
    line = re.sub(r"\S*/onnxruntime_src/\S+ \S+::\S+\(.*\) (?=\S)", "", line)
    return line if len(line) <= 400 else f"{line[:120]} … {line[-270:]}"
