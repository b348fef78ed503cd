"""A StableHLO module as plain data: functions, blocks and operations. It reads MLIR's objects without JAX."""
# pyright: basic, reportPrivateUsage=true
# MLIR's objects have no types here.

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from dovetail.dataclass import dataclass
from dovetail.errors import LoadError, UnsupportedError
from dovetail.ir.dim import symbol
from dovetail.ir.dtype import ALL, BY_NAME, NARROW, DType, bf16
from dovetail.ir.type import TensorType

_NUMPYS_OWN = tuple(d for d in ALL if d not in (*NARROW, bf16))
_EXPORTED = "_wrapped_jax_export_main"
"""The function that a main with open sizes calls: its last arguments are those of main, with their names."""
_OTHER_NAMES = {"i1": "bool", "complex<f32>": "c64"}


@dataclass(frozen=True, slots=True)
class Operation:
    """One operation; values are numbered within their module."""

    name: str
    """With its dialect: stablehlo.add."""
    operands: tuple[int, ...]
    results: tuple[int, ...]
    types: tuple[TensorType, ...]
    """Of the results."""
    attrs: Mapping[str, Any]
    blocks: tuple[Block, ...]
    where: str
    """The scopes of the user's function, or its source line."""


@dataclass(frozen=True, slots=True)
class Block:
    """Operations in order: the body of a function, a branch, a reducer."""

    arguments: tuple[int, ...]
    types: tuple[TensorType, ...]
    operations: tuple[Operation, ...]
    returned: tuple[int, ...]

    def every(self) -> Iterator[Operation]:
        """The operations, and those of the blocks in them."""
        for operation in self.operations:
            yield operation
            for block in operation.blocks:
                yield from block.every()

    @property
    def free(self) -> tuple[int, ...]:
        """The values that are read here and made outside."""
        own, read = {*self.arguments}, dict.fromkeys(self.returned)
        for operation in self.operations:
            own |= {*operation.results}
            read |= dict.fromkeys(operation.operands)
            for block in operation.blocks:
                read |= dict.fromkeys(block.free)
        return tuple(value for value in read if value not in own)


@dataclass(frozen=True, slots=True)
class Module:
    """Functions by name; `main` is the one that is imported."""

    name: str
    functions: Mapping[str, Block]
    inputs: tuple[str, ...]
    """The names of main's arguments."""
    outputs: tuple[str, ...]

    @property
    def reached(self) -> dict[str, Block]:
        """The functions that are called, main first."""
        found, pending = dict[str, Block](), ["main"]
        while pending:
            name = pending.pop()
            if name not in found:
                found[name] = self.functions[name]
                pending += [callee for o in found[name].every() if (callee := called(o)) is not None]
        return found


def called(operation: Operation) -> str | None:
    """The function that an operation calls."""
    match operation.name:
        case "func.call" | "call":
            return str(operation.attrs["callee"])
        case "stablehlo.composite":
            return str(operation.attrs["decomposition"])
        case _:
            return None


def read_module(module: Any) -> Module:
    """The functions of a module of MLIR."""
    reader = _Reader()
    found: dict[str, Block] = {}
    functions: dict[str, Any] = {}
    main: Any = None
    for one in module.body.operations:
        if one.operation.name != "func.func":
            continue  # a mesh of Shardy
        name = str(one.attributes["sym_name"].value)
        found[name], functions[name] = reader.block(one.regions[0].blocks[0]), one
        main = one if name == "main" else main
    if main is None:
        raise LoadError("a module without a function main", hint="pass what jax.jit(f).lower(…) or jax.export gives")
    told = str(main.attributes["res_attrs"]) if "res_attrs" in main.attributes else ""
    results = [_dotted(r) for r in re.findall(r'jax\.result_info = "([^"]*)"', told)]
    name = str(module.operation.attributes["sym_name"].value) if "sym_name" in module.operation.attributes else "main"
    count = len(found["main"].returned)
    outputs = results if len(results) == count else [""] * count
    inputs = argument_names(functions.get(_EXPORTED, main))[-len(found["main"].arguments) or None :]
    return Module(name.removeprefix("jit_"), found, inputs, _distinct(outputs, "result"))


def argument_names(function: Any) -> tuple[str, ...]:
    """The names of the arguments of a function of MLIR, as the user's function has them."""
    arguments = function.regions[0].blocks[0].arguments
    return _distinct([_dotted(_quoted(str(a.location))) for a in arguments], "argument")


def _quoted(location: str) -> str:
    found = re.match(r'loc\("([^"]*)"', location)
    return found[1] if found and ":" not in location.removeprefix(found[0]) else ""


def _dotted(path: str) -> str:
    """A path into arguments as one name that patterns fit: params['w'][0].b is params.w.0.b."""
    return re.sub(r"\[<?'?([^'\]>]*)'?>?\]", r".\1", path).strip(".")


def _distinct(names: list[str], else_: str) -> tuple[str, ...]:
    names = [name or f"{else_}.{i}" for i, name in enumerate(names)]
    return tuple(name if names.count(name) == 1 else f"{name}.{i}" for i, name in enumerate(names))


class _Reader:
    """Numbers values as it meets them."""

    def __init__(self) -> None:
        self._numbers: dict[Any, int] = {}

    def _number(self, value: Any) -> int:
        return self._numbers.setdefault(value, len(self._numbers))

    def block(self, block: Any) -> Block:
        arguments = tuple(map(self._number, block.arguments))
        types = tuple(_type(a.type) for a in block.arguments)
        *body, end = [o.operation for o in block.operations]
        operations = tuple(map(self._operation, body))
        return Block(arguments, types, operations, tuple(map(self._number, end.operands)))

    def _operation(self, op: Any) -> Operation:
        where = _where(str(op.location))
        try:
            types = tuple(_type(r.type) for r in op.results)
        except UnsupportedError as error:
            error.where = where
            raise
        return Operation(
            op.name,
            tuple(map(self._number, op.operands)),
            tuple(map(self._number, op.results)),
            types,
            {name: _attribute(op.attributes[name]) for name in _names(op.attributes)},
            tuple(self.block(region.blocks[0]) for region in op.regions if len(region.blocks)),
            where,
        )


UNKNOWN = symbol("size_left_open")
"""A size of a result that MLIR leaves open: the rule that makes the result knows it."""


def _type(type: Any) -> TensorType:
    text = str(type)
    inside = re.fullmatch(r"tensor<((?:[\d?]+x)*)([^,]*?)(?:, .*)?>", text)
    if inside is None:
        raise UnsupportedError(f"a value of type {text}", hint="tensors of numbers are imported")
    sizes = [UNKNOWN if size == "?" else int(size) for size in inside[1].split("x")[:-1]]
    return TensorType(_dtype(inside[2]), tuple(sizes))


def _dtype(name: str) -> DType:
    own = _OTHER_NAMES.get(name, name.lower())
    own = f"u{own[2:]}" if own.startswith("ui") else own
    if own not in BY_NAME:
        raise UnsupportedError(f"elements of type {name}", hint=f"these are known: {', '.join(BY_NAME)}")
    return BY_NAME[own]


def _names(attributes: Any) -> list[str]:
    """JAX 0.8 iterates over named attributes, later ones over names."""
    return [one if isinstance(one, str) else one.name for one in attributes]


def _attribute(attribute: Any) -> Any:
    """An attribute as Python's own data; text where MLIR has no type of its own for it."""
    kind = type(attribute).__name__
    if kind in ("IntegerAttr", "BoolAttr", "StringAttr", "FlatSymbolRefAttr", "FloatAttr"):
        return attribute.value
    if kind in ("DenseI64ArrayAttr", "DenseI32ArrayAttr", "DenseBoolArrayAttr"):
        return tuple(attribute)
    if kind == "ArrayAttr":
        return tuple(map(_attribute, attribute))
    if kind.startswith("Dense") and "index" not in str(attribute.type):
        return _elements(attribute)
    return str(attribute)


def _elements(attribute: Any) -> Any:
    """The array of a constant. NumPy knows no narrow floats, so that only one number everywhere is read of them."""
    wanted = _type(attribute.type)
    dtype, shape = wanted.dtype.numpy, tuple(int(s) for s in wanted.shape if isinstance(s, int))
    if wanted.dtype not in _NUMPYS_OWN:
        if not attribute.is_splat:
            raise UnsupportedError(f"a constant of {wanted}", hint="pass it as an argument")
        one = str(attribute).split("<")[1].split(">")[0]
        number = np.array(int(one, 16), f"u{dtype.itemsize}").view(dtype) if one.startswith("0x") else float(one)
        return np.full(shape, number, dtype)
    return np.array(attribute).astype(dtype).reshape(shape)


def _where(location: str) -> str:
    """The scopes that JAX wrote, without the functions that it compiled and the op itself; else a source line."""
    found = re.search(r'loc\("(jit\([^"]*?)"', location)
    if found:
        scopes = [s for s in found[1].split("/")[1:-1] if not re.fullmatch(r"(jit|jvp|transpose|vmap|remat)\(.*\)", s)]
        if scopes:
            return ".".join(scopes)
    line = re.search(r'"([^"]*?([^"/]+))":(\d+):', location)
    return f"{line[2]}:{line[3]}" if line else ""


__all__ = ["UNKNOWN", "Block", "Module", "Operation", "argument_names", "called", "read_module"]
