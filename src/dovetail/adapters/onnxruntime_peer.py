"""onnxruntime as a second opinion: the same model, the same inputs."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

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
            self._session = runtime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        except Exception as error:  # its errors have no common base
            raise CheckError(
                f"onnxruntime does not load {self.name}: {_first(error)}", hint="run without the check"
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
        return dict(zip(names, results, strict=True))


_SPELLED = {
    "tensor(float)": "float32",
    "tensor(double)": "float64",
    "tensor(float16)": "float16",
    "tensor(bool)": "bool",
    **{f"tensor({sign}int{bits})": f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)},
}
"""How onnxruntime spells the types of inputs."""


def _first(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:300]
