"""An ML graph compiler and runtime whose joints you can see."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from dovetail.ir.collector import collector_paused as _collector_paused

with _collector_paused():  # importing makes fifty thousand objects and no garbage
    from dovetail import blocks, library, ops
    from dovetail.declare.backward import fused_op
    from dovetail.declare.fused import FusedOp
    from dovetail.errors import (
        BindError,
        BudgetError,
        CheckError,
        DeviceError,
        DovetailError,
        GateError,
        GradientError,
        GraphError,
        LoadError,
        NeedsValueError,
        OptionError,
        OutOfMemoryError,
        ParseError,
        PeerError,
        ServiceError,
        SizeError,
        SizeLimitError,
        TraceError,
        TypeRuleError,
        UnsupportedError,
        VerifyError,
    )
    from dovetail.ir.dtype import (
        DType,
        bf16,
        bool_,
        c64,
        f4e2m1,
        f8e4m3fn,
        f8e4m3fnuz,
        f8e5m2,
        f8e5m2fnuz,
        f8e8m0,
        f16,
        f32,
        f64,
        i2,
        i4,
        i8,
        i16,
        i32,
        i64,
        u2,
        u4,
        u8,
        u16,
        u32,
        u64,
    )
    from dovetail.ir.graph import Builder, Graph
    from dovetail.ir.leaf import constant, input, param
    from dovetail.ir.origin import scope
    from dovetail.ir.text import print_graph
    from dovetail.ir.type import TensorType, TupleType
    from dovetail.ir.value import Value
    from dovetail.ir.verify import verify
    from dovetail.passes.canonicalize import canonicalize
    from dovetail.runtime.compile import compile, scan
    from dovetail.runtime.load import load, parse, save
    from dovetail.runtime.program import Program
    from dovetail.settings import Settings
    from dovetail.targets.reference.interpreter import evaluate
    from dovetail.targets.runtime.arrays.device_array import DeviceArray
    from dovetail.version import __version__

if TYPE_CHECKING:
    from dovetail import models, torch
    from dovetail.grad.gradient import gradient
    from dovetail.language.model import LanguageModel
    from dovetail.language.sampling import Sampling
    from dovetail.report.analysis import Analysis, analyze
    from dovetail.report.report import Report
    from dovetail.runtime.explain_placement import choose_placement, explain_placement
    from dovetail.runtime.gradients import value_and_grad
    from dovetail.runtime.page import write_report
    from dovetail.runtime.quantise import Quantise
    from dovetail.train.lora import lora
    from dovetail.train.trainer import Trainer

__all__ = [
    "Analysis",
    "BindError",
    "BudgetError",
    "Builder",
    "CheckError",
    "DType",
    "DeviceArray",
    "DeviceError",
    "DovetailError",
    "FusedOp",
    "GateError",
    "GradientError",
    "Graph",
    "GraphError",
    "LanguageModel",
    "LoadError",
    "NeedsValueError",
    "OptionError",
    "OutOfMemoryError",
    "ParseError",
    "PeerError",
    "Program",
    "Quantise",
    "Report",
    "Sampling",
    "ServiceError",
    "Settings",
    "SizeError",
    "SizeLimitError",
    "TensorType",
    "TraceError",
    "Trainer",
    "TupleType",
    "TypeRuleError",
    "UnsupportedError",
    "Value",
    "VerifyError",
    "__version__",
    "analyze",
    "bf16",
    "blocks",
    "bool_",
    "c64",
    "canonicalize",
    "choose_placement",
    "compile",
    "constant",
    "evaluate",
    "explain_placement",
    "f4e2m1",
    "f8e4m3fn",
    "f8e4m3fnuz",
    "f8e5m2",
    "f8e5m2fnuz",
    "f8e8m0",
    "f16",
    "f32",
    "f64",
    "fused_op",
    "gradient",
    "i2",
    "i4",
    "i8",
    "i16",
    "i32",
    "i64",
    "input",
    "library",
    "load",
    "lora",
    "models",
    "ops",
    "param",
    "parse",
    "print_graph",
    "save",
    "scan",
    "scope",
    "torch",
    "u2",
    "u4",
    "u8",
    "u16",
    "u32",
    "u64",
    "value_and_grad",
    "verify",
    "write_report",
]

_ON_FIRST_USE = {
    "Analysis": "dovetail.report.analysis",
    "LanguageModel": "dovetail.language.model",
    "Quantise": "dovetail.runtime.quantise",
    "Report": "dovetail.report.report",
    "Sampling": "dovetail.language.sampling",
    "Trainer": "dovetail.train.trainer",
    "analyze": "dovetail.report.analysis",
    "choose_placement": "dovetail.runtime.explain_placement",
    "explain_placement": "dovetail.runtime.explain_placement",
    "gradient": "dovetail.grad.gradient",
    "lora": "dovetail.train.lora",
    "value_and_grad": "dovetail.runtime.gradients",
    "write_report": "dovetail.runtime.page",
}
"""Names that neither building, compiling nor running a graph needs, and the modules that have them."""


def __getattr__(name: str) -> Any:
    if name in ("models", "torch"):
        return import_module(f"dovetail.{name}")
    if name not in _ON_FIRST_USE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_ON_FIRST_USE[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
