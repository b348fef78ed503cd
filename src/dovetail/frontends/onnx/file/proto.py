"""The messages of ONNX files, without the rest of the onnx package.

Its schemas in C++, checkers and helpers take 70 ms to import, and models whose operators all have rules need none.
"""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

_GENERATED = "onnx_ml_pb2"


def _messages() -> ModuleType:
    """The module that protoc generated. protobuf holds each message once: `onnx` has the same classes."""
    package = None if "onnx" in sys.modules else find_spec("onnx")
    for folder in (package and package.submodule_search_locations) or ():
        file = Path(folder, f"{_GENERATED}.py")
        spec = spec_from_file_location(f"{__name__}.{_GENERATED}", file) if file.is_file() else None
        if spec is not None and spec.loader is not None:
            found = module_from_spec(spec)
            spec.loader.exec_module(found)
            return found
    return import_module(f"onnx.{_GENERATED}")


if TYPE_CHECKING:
    import onnx.onnx_ml_pb2 as messages
    from onnx.onnx_ml_pb2 import AttributeProto, TensorProto
else:
    messages = _messages()
    AttributeProto, TensorProto = messages.AttributeProto, messages.TensorProto

__all__ = ["AttributeProto", "TensorProto", "messages"]
