"""The keyword options of `compile` and of functions that compile, as types."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from dovetail.declare.fused import FusedOp
from dovetail.ir.literal import Array
from dovetail.passes.claims import Dispatch
from dovetail.settings import OtherSettings, SettingsOptions
from dovetail.targets import Target


class TargetOptions(OtherSettings, total=False):
    """What decides how a graph is compiled, and which fusions it must have, but for `precision`."""

    target: str | Target
    ops: Iterable[FusedOp[...]]
    without: Iterable[str]
    dispatch: Mapping[str, Dispatch] | None
    require: Mapping[str, int] | Sequence[str]
    require_clean: bool
    assume_sizes: Mapping[str, int] | None


class RequestOptions(TargetOptions, SettingsOptions, total=False):
    """The same with every setting."""


class CompileOptions(RequestOptions, total=False):
    """The same, and what has one value in every run of an ONNX file."""

    fixed: Mapping[str, Array | int] | None


__all__ = ["CompileOptions", "RequestOptions", "TargetOptions"]
