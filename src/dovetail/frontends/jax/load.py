"""Entry points: what `jax.jit(f).lower(…)` and `jax.export` give, and files of StableHLO text."""
# pyright: basic, reportPrivateUsage=true
# Objects of JAX have no types here.

from __future__ import annotations

import ast
from collections.abc import Sequence
from importlib import import_module
from typing import Any

from dovetail.errors import LoadError, UnsupportedError
from dovetail.frontends.jax.importing import Import
from dovetail.frontends.jax.module import read_module
from dovetail.frontends.jax.rules import REGISTRY
from dovetail.frontends.shared.messages import sanitized_errors
from dovetail.ir.collector import collector_paused
from dovetail.ir.dim import Size, floordiv, symbol
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
    kept = sorted(getattr(given, "module_kept_var_idx", range(len(given.in_avals))))
    return import_text(given.mlir_module(), [tuple(map(_size, given.in_avals[i].shape)) for i in kept])


def _size(size: Any) -> Size:
    """A size of JAX: a number, or an expression of its symbols."""
    return size if isinstance(size, int) else _expression(ast.parse(str(size), mode="eval").body, str(size))


def _expression(node: ast.expr, text: str) -> Size:
    match node:
        case ast.Constant(value=int(number)):
            return number
        case ast.Name(id=name):
            return symbol(name)
        case ast.UnaryOp(op=ast.USub(), operand=of):
            return _expression(of, text) * -1
        case ast.BinOp(left=left, op=ast.Add() | ast.Sub() | ast.Mult() as op, right=right):
            a, b = _expression(left, text), _expression(right, text)
            return a + b if isinstance(op, ast.Add) else a - b if isinstance(op, ast.Sub) else a * b
        case ast.Call(func=ast.Name(id="floordiv"), args=[left, right]):
            return floordiv(_expression(left, text), _expression(right, text))
        case _:
            raise UnsupportedError(f"an argument of the size {text}", hint="use sums, products and floordiv of symbols")


def import_text(text: str, shapes: Sequence[tuple[Size, ...]] | None = None) -> Graph:
    """The graph of StableHLO text. JAX parses it. `shapes` are those of the arguments, with names for open sizes."""
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
        return _graph(module, shapes)


def _graph(module: Any, shapes: Sequence[tuple[Size, ...]] | None = None) -> Graph:
    with sanitized_errors(), phase("import"), collector_paused():
        return Import(read_module(module), REGISTRY.by_name, shapes).graph()


__all__ = ["import_function", "import_text", "is_jax"]
