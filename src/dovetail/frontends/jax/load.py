"""Entry points: what `jax.jit(f).lower(…)` and `jax.export` give, and files of StableHLO text."""
# pyright: basic, reportPrivateUsage=true
# Objects of JAX have no types here.

from __future__ import annotations

from importlib import import_module
from typing import Any

from dovetail.errors import LoadError, UnsupportedError
from dovetail.frontends.jax.importing import Import
from dovetail.frontends.jax.module import read_module
from dovetail.frontends.jax.rules import RULES
from dovetail.frontends.shared.messages import sanitized_errors
from dovetail.ir.collector import collector_paused
from dovetail.ir.graph import Graph
from dovetail.progress import phase


def is_jax(given: Any) -> bool:
    """Whether it is a lowered or an exported function of JAX."""
    is_theirs = type(given).__module__.partition(".")[0] in ("jax", "jaxlib")
    return is_theirs and (hasattr(given, "compiler_ir") or hasattr(given, "mlir_module"))


def import_function(given: Any) -> Graph:
    """The graph of a lowered or an exported function. Arguments are inputs, by their names in the function."""
    if hasattr(given, "compiler_ir"):
        return _graph(given.compiler_ir("stablehlo"))
    return import_text(given.mlir_module())


def import_text(text: str) -> Graph:
    """The graph of StableHLO text. JAX parses it."""
    try:
        mlir, ir = import_module("jax.interpreters.mlir"), import_module("jax.extend.mlir.ir")
    except ImportError as error:
        raise UnsupportedError(
            f"StableHLO text needs JAX, and {error}", hint="python -m pip install 'dovetail-ml[xla]'"
        ) from error
    with mlir.make_ir_context() as context, ir.Location.unknown():
        try:
            module = ir.Module.parse(text, context)
        except Exception as error:  # the error of MLIR has a name of its own in each release
            raise LoadError(f"no StableHLO: {str(error).strip().splitlines()[0]}", hint="check the file") from error
        return _graph(module)


def _graph(module: Any) -> Graph:
    with sanitized_errors(), phase("import"), collector_paused():
        return Import(read_module(module), RULES).graph()


__all__ = ["import_function", "import_text", "is_jax"]
