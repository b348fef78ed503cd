"""An ML graph compiler and runtime that explains every fusion it makes and misses.

These names are enough to build, compile, run and explain a graph. Dtypes are in `dovetail.dtypes`, errors in
`dovetail.errors`; docs/api.md lists the other public modules.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from dovetail.renamed import old_names as _old_names
from dovetail.version import __version__

if TYPE_CHECKING:
    from dovetail import blocks as blocks
    from dovetail import declare as declare
    from dovetail import dtypes as dtypes
    from dovetail import errors as errors
    from dovetail import graphs as graphs
    from dovetail import inspect as inspect
    from dovetail import language as language
    from dovetail import library as library
    from dovetail import mesh as mesh
    from dovetail import models as models
    from dovetail import ops as ops
    from dovetail import process as process
    from dovetail import programs as programs
    from dovetail import reports as reports
    from dovetail import targets as targets
    from dovetail import testing as testing
    from dovetail import torch as torch
    from dovetail import train as train
    from dovetail.declare.backward import fused_op
    from dovetail.ir.graph import Builder, Graph
    from dovetail.ir.leaf import input, param
    from dovetail.ir.value import Value
    from dovetail.report.report import Report
    from dovetail.runtime.compile import compile, explain
    from dovetail.runtime.load import load, save
    from dovetail.runtime.program import Program
    from dovetail.targets.reference.interpreter import evaluate

__all__ = [
    "Builder",
    "Graph",
    "Program",
    "Report",
    "Value",
    "__version__",
    "compile",
    "evaluate",
    "explain",
    "fused_op",
    "input",
    "load",
    "ops",
    "param",
    "save",
]

MODULES = (
    *("blocks", "declare", "dtypes", "errors", "graphs", "inspect", "language", "library", "mesh", "models"),
    *("process", "programs", "reports", "targets", "testing", "torch", "train"),
)
"""The public modules below this one; each is imported on first use."""

_MOVED = {
    "dovetail.declare": ["FusedOp"],
    "dovetail.dtypes": [
        *("DType", "bf16", "bool_", "c64", "f4e2m1", "f8e4m3fn", "f8e4m3fnuz", "f8e5m2", "f8e5m2fnuz", "f8e8m0", "f16"),
        *("f32", "f64", "i2", "i4", "i8", "i16", "i32", "i64", "u2", "u4", "u8", "u16", "u32", "u64"),
    ],
    "dovetail.errors": [
        *("BindError", "BudgetError", "CheckError", "DeviceError", "DovetailError", "GateError", "GradientError"),
        *("GraphError", "LoadError", "NeedsValueError", "OptionError", "OutOfMemoryError", "ParseError", "PeerError"),
        *("ServiceError", "SizeError", "SizeLimitError", "TraceError", "TypeRuleError", "UnsupportedError"),
        "VerifyError",
    ],
    "dovetail.graphs": [
        *("TensorType", "TupleType", "canonicalize", "constant", "gradient", "parse", "print_graph", "scope"),
        *("value_and_grad", "verify"),
    ],
    "dovetail.language": ["LanguageModel", "Sampling"],
    "dovetail.mesh": ["choose_placement", "explain_placement"],
    "dovetail.programs": ["DeviceArray", "Settings"],
    "dovetail.reports": ["Analysis", "analyze", "write_report"],
    "dovetail.train": ["Trainer", "lora"],
}
"""Names that version 0.1 had here, by the modules that have them."""


_PLACES = {
    "Builder": "dovetail.ir.graph",
    "Graph": "dovetail.ir.graph",
    "Program": "dovetail.runtime.program",
    "Report": "dovetail.report.report",
    "Value": "dovetail.ir.value",
    "compile": "dovetail.runtime.compile",
    "evaluate": "dovetail.targets.reference.interpreter",
    "explain": "dovetail.runtime.compile",
    "fused_op": "dovetail.declare.backward",
    "input": "dovetail.ir.leaf",
    "load": "dovetail.runtime.load",
    "param": "dovetail.ir.leaf",
    "save": "dovetail.runtime.load",
}
"""The modules of the names above, imported on first use, after the primitives: values have no operators before."""


def _on_first_use(name: str) -> object:
    if name in _PLACES:
        from dovetail.ir.collector import collector_paused

        with collector_paused():  # importing makes fifty thousand objects and no garbage
            import_module("dovetail.ops")
            found = getattr(import_module(_PLACES[name]), name)
    elif name in MODULES or name == "ops":
        found = import_module(f"dovetail.{name}")
    else:
        raise KeyError(name)
    globals()[name] = found
    return found


if not TYPE_CHECKING:
    __getattr__ = _old_names(
        __name__,
        {name: f"{module}.{name}" for module, names in _MOVED.items() for name in names}
        | {"Quantise": "dovetail.programs.Quantize", "scan": "dovetail.explain"},
        _on_first_use,
    )


def __dir__() -> list[str]:
    return sorted({*__all__, *MODULES, *(name for name in globals() if name[:2] == "__")})
