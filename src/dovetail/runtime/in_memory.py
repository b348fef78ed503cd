"""Graphs that are in memory in some form: graphs, ONNX models, programs of torch and functions of JAX."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from dovetail.dataclass import dataclass
from dovetail.errors import LoadError, OptionError
from dovetail.ir.graph import Graph
from dovetail.ir.literal import Array


@dataclass(frozen=True, slots=True)
class Described:
    """A graph that a text describes in full, to be built only where the cache does not know it."""

    text: str
    build: Callable[[], Graph]


class OnnxModel(Protocol):
    """An `onnx.ModelProto`, as far as types have to tell it."""

    def SerializeToString(self) -> bytes: ...


def graph_in_memory(given: Any, *, fixed: Mapping[str, Array | int] | None = None, train: bool = False) -> Graph:
    """The graph of anything that `compile` takes but files and modules of torch, which need the arguments of a call.

    `fixed` and `train` are for ONNX models.
    """
    if isinstance(given, Graph):
        return given
    if isinstance(given, Described):
        return given.build()
    if is_onnx_model(given):
        from dovetail.frontends.onnx import load_bytes  # a fifth of a second, for those who need it

        return load_bytes(_content(given), fixed=fixed, train=train)
    if is_torch(given) and hasattr(given, "graph_signature"):
        from dovetail.frontends.torch.load import import_module  # torch is there, where its program is

        return import_module(given).graph
    if is_torch(given):
        raise OptionError(
            f"the torch module {type(given).__name__}, which has no graph before it is called",
            hint="pass torch.export.export(module, args)",
        )
    if type(given).__module__.partition(".")[0] == "jax":
        from dovetail.frontends.jax.load import import_function, is_jax  # few compile functions of JAX

        if is_jax(given):
            return import_function(given)
    raise OptionError(
        f"a {type(given).__name__} to compile",
        hint=f"pass a Graph, a path, or an ONNX model in memory{_hint(given)}",
    )


def is_torch(given: object) -> bool:
    """Whether something is a module or a program of torch; torch is not imported to tell."""
    return any(kind.__module__.partition(".")[0] == "torch" for kind in type(given).__mro__)


def is_onnx_model(given: object) -> bool:
    """Whether something is an ONNX model in memory; onnx is not imported to tell."""
    return isinstance(given, bytes | bytearray | memoryview) or type(given).__name__ == "ModelProto"


def _hint(given: object) -> str:
    """What to do with a plain function, which front ends trace."""
    return "; of a function of JAX, pass jax.jit(f).lower(…)" if callable(given) else ""


def _content(given: Any) -> bytes:
    if not hasattr(given, "SerializeToString"):
        return bytes(given)
    try:
        return given.SerializeToString()
    except Exception as error:  # protobuf has several classes for a message that is too large
        raise LoadError(f"a model that cannot be written: {error}", hint="save it with external data") from error


__all__ = ["Described", "OnnxModel", "graph_in_memory", "is_onnx_model", "is_torch"]
