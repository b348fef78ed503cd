"""ONNX models as graphs: `load_model` reads a file, `load_bytes` and `import_model` a model in memory.

Both are imported on first use: `file.skim` needs no onnx package, which takes a fifth of a second to import.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dovetail.frontends.onnx.load import import_model, load_bytes, load_model

__all__ = ["import_model", "load_bytes", "load_model"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from dovetail.frontends.onnx import load

    return getattr(load, name)
