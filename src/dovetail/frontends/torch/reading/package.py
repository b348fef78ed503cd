"""torch itself, imported when it is first needed: it is an optional package."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from typing import Any

from dovetail.errors import OptionError
from dovetail.ir.dtype import BY_NAME, DType


def torch_module(name: str = "torch") -> Any:
    """torch, or one of its modules."""
    try:
        return import_module(name)
    except ImportError as error:
        raise OptionError(f"torch cannot be imported: {error}", hint="pip install 'dovetail-ml[torch]'") from error


@cache
def dtypes() -> dict[Any, DType]:
    """torch's dtypes, and ours for each."""
    torch = torch_module()
    names = {
        "bool": "bool",
        "uint8": "u8",
        "int8": "i8",
        "int16": "i16",
        "int32": "i32",
        "int64": "i64",
        "uint16": "u16",
        "uint32": "u32",
        "uint64": "u64",
        "float16": "f16",
        "bfloat16": "bf16",
        "float32": "f32",
        "float64": "f64",
        "complex64": "c64",
        "float8_e4m3fn": "f8e4m3fn",
        "float8_e4m3fnuz": "f8e4m3fnuz",
        "float8_e5m2": "f8e5m2",
        "float8_e5m2fnuz": "f8e5m2fnuz",
    }
    return {getattr(torch, name): BY_NAME[ours] for name, ours in names.items() if hasattr(torch, name)}
