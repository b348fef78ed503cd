"""Modules exported with torch.export, decomposed down to the operators that have rules."""

from __future__ import annotations

import warnings
from collections.abc import Collection, Mapping, Sequence
from functools import cache
from typing import Any, cast

from dovetail.errors import LoadError, OptionError
from dovetail.frontends.torch.reading.package import torch_module
from dovetail.progress import phase


def is_module(given: Any) -> bool:
    return isinstance(given, torch_module().nn.Module)


def is_program(given: Any) -> bool:
    return isinstance(given, torch_module("torch.export").ExportedProgram)


def load_program(path: str) -> Any:
    """The program of a .pt2 file."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return torch_module("torch.export").load(path)
        except (RuntimeError, ValueError, KeyError, TypeError, AssertionError, OSError) as error:
            raise LoadError(f"{path} is no exported program: {_first_line(error)}", hint="see torch.export.save") from error


def captured(module: Any, args: Sequence[Any], kwargs: Mapping[str, Any], dynamic: Any) -> tuple[Any, dict[str, str]]:
    """The exported program of a module, and the names that `dynamic` gives to its symbols."""
    torch = torch_module()
    if module.training and _has_dropout(module):
        raise OptionError("a module in training mode, with dropout", hint="call module.eval() first")
    spec = _dynamic_shapes(module, args, kwargs, dynamic)
    with torch.no_grad(), warnings.catch_warnings(), phase("export"):
        warnings.simplefilter("ignore")
        try:
            program = torch.export.export(module, tuple(args), dict(kwargs), dynamic_shapes=spec, strict=False)
        except Exception as error:  # torch raises what the module raises, and many kinds of its own
            raise LoadError(
                f"torch.export refuses the module: {_first_line(error)}",
                hint="torch.export.export(module, args, strict=False) shows all of it",
            ) from error
    return program, _names(program, args, kwargs, dynamic)


def decomposed(program: Any, kept: Collection[str]) -> Any:
    """The program in functional form; operators named in `kept` stay whole."""
    torch = torch_module()
    table = {op: function for op, function in _decompositions().items() if str(op) not in kept}
    with torch.no_grad(), warnings.catch_warnings(), phase("decompose"):
        warnings.simplefilter("ignore")
        try:
            return program.run_decompositions(table)
        except Exception as error:  # torch raises many kinds here, none of them documented
            raise LoadError(
                f"torch cannot decompose the program: {_first_line(error)}",
                hint="program.run_decompositions() shows all of it",
            ) from error


@cache
def _decompositions() -> dict[Any, Any]:
    """torch's own table, of which making it anew takes a second."""
    return dict(torch_module("torch.export").default_decompositions().items())


def _has_dropout(module: Any) -> bool:
    return any(type(m).__name__.endswith("Dropout") and getattr(m, "p", 0) > 0 for m in module.modules())


def _first_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0] if lines else ''}"


def _dynamic_shapes(module: Any, args: Sequence[Any], kwargs: Mapping[str, Any], dynamic: Any) -> Any:
    """torch's description of sizes that change: True is every axis of every tensor, a string names one."""
    if not dynamic:
        return None
    torch = torch_module()
    pytree = torch_module("torch.utils._pytree")
    dims: dict[str, Any] = {}

    def every(leaf: Any) -> Any:
        return dict.fromkeys(range(leaf.dim()), torch.export.Dim.AUTO) if isinstance(leaf, torch.Tensor) else None

    if dynamic is True:
        given = (tuple(args), dict(kwargs))
        mapped = pytree.tree_map(every, given)
        return _by_name(module, mapped[0], mapped[1])

    def named(spec: Any) -> Any:
        if isinstance(spec, str):
            return dims.setdefault(spec, torch.export.Dim(spec, min=1))
        if isinstance(spec, Mapping):
            return {k: named(v) for k, v in cast(Mapping[Any, Any], spec).items()}
        if isinstance(spec, list | tuple):
            return type(spec)(named(v) for v in cast(Sequence[Any], spec))
        return torch.export.Dim.AUTO if spec is True else spec

    return named(dynamic)


def _by_name(module: Any, args: Any, kwargs: Any) -> Any:
    """Positional descriptions as a tuple, all as a mapping where there are keywords too."""
    if not kwargs:
        return args
    inspect = __import__("inspect")
    bound = inspect.signature(module.forward).bind(*args, **kwargs)
    return dict(bound.arguments)


def _names(program: Any, args: Sequence[Any], kwargs: Mapping[str, Any], dynamic: Any) -> dict[str, str]:
    """torch's symbols, and what `dynamic` calls each of them."""
    if not isinstance(dynamic, Mapping | list | tuple):
        return {}
    torch = torch_module()
    found: dict[str, str] = {}
    placeholders = {n.name: n for n in program.graph.nodes if n.op == "placeholder"}
    inputs = [placeholders[name] for name in program.graph_signature.user_inputs if isinstance(name, str)]

    def tensors(given: Any) -> list[Any]:
        return [v for v in torch_module("torch.utils._pytree").tree_leaves(given) if isinstance(v, torch.Tensor)]

    def walk(spec: Any, given: Any) -> None:
        if isinstance(given, torch.Tensor):
            node = next((n for n, t in zip(held, flat, strict=False) if t is given), None)
            axes = dict(enumerate(spec)) if isinstance(spec, list | tuple) else spec if isinstance(spec, Mapping) else {}
            for axis, name in cast(Mapping[Any, Any], axes).items():
                label = name if isinstance(name, str) else getattr(name, "__name__", None)
                size = None if node is None else node.meta["val"].shape[axis]
                if isinstance(label, str) and isinstance(size, torch.SymInt) and size.node.expr.is_Symbol:
                    found[str(size.node.expr)] = label
        elif isinstance(given, Mapping) and isinstance(spec, Mapping):
            for key, inner in cast(Mapping[Any, Any], given).items():
                walk(spec.get(key), inner)
        elif isinstance(given, list | tuple) and isinstance(spec, list | tuple):
            for one, inner in zip(cast(Sequence[Any], spec), cast(Sequence[Any], given), strict=False):
                walk(one, inner)

    flat = tensors((tuple(args), dict(kwargs)))
    held = [n for n in inputs if isinstance(n.meta.get("val"), torch.Tensor)]
    if isinstance(dynamic, Mapping):
        names = list(cast(Mapping[Any, Any], dynamic))
        given = {**dict(zip(names, args, strict=False)), **kwargs}
        walk(dynamic, given)
    else:
        walk(dynamic, tuple(args))
    return found
