"""An ML graph compiler and runtime whose joints you can see."""

from dovetail import ops
from dovetail.errors import (
    BindError,
    DovetailError,
    GateError,
    GraphError,
    LoadError,
    OptionError,
    ParseError,
    TraceError,
    TypeRuleError,
    UnsupportedError,
    VerifyError,
)
from dovetail.ir.dtype import DType, bf16, bool_, c64, f16, f32, f64, i8, i16, i32, i64, u8, u16, u32, u64
from dovetail.ir.graph import Builder, Graph
from dovetail.ir.type import TensorType, TupleType
from dovetail.ir.value import Value
from dovetail.settings import Settings
from dovetail.version import __version__

__all__ = [
    "BindError",
    "Builder",
    "DType",
    "DovetailError",
    "GateError",
    "Graph",
    "GraphError",
    "LoadError",
    "OptionError",
    "ParseError",
    "Settings",
    "TensorType",
    "TraceError",
    "TupleType",
    "TypeRuleError",
    "UnsupportedError",
    "Value",
    "VerifyError",
    "__version__",
    "bf16",
    "bool_",
    "c64",
    "f16",
    "f32",
    "f64",
    "i8",
    "i16",
    "i32",
    "i64",
    "ops",
    "u8",
    "u16",
    "u32",
    "u64",
]
