"""A module as a graph: operation by operation, each by its rule."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from dovetail.errors import LoadError, UnsupportedError
from dovetail.frontends.jax.module import UNKNOWN, Block, Module, Operation, called
from dovetail.frontends.shared import site
from dovetail.frontends.shared.importer import Importer, refuse
from dovetail.frontends.shared.rule import Made, Rule
from dovetail.ir import leaf
from dovetail.ir.dim import Size
from dovetail.ir.dtype import DType
from dovetail.ir.graph import Graph
from dovetail.ir.origin import Origin
from dovetail.ir.type import TensorType
from dovetail.ir.value import Value

CALL = "stablehlo.custom_call"


def rule(*ops: str) -> Callable[[Callable[[Node], Made]], tuple[Rule, ...]]:
    """Declare how some operations are read."""
    return lambda function: tuple(Rule(op, function) for op in ops)


def of_operands(dialect: str, functions: Mapping[str, Callable[..., Value]]) -> tuple[Rule, ...]:
    """Declare operations of a dialect that are functions of their operands alone."""

    def reading(function: Callable[..., Value]) -> Callable[[Node], Made]:
        return lambda n: function(*n.operands)

    return tuple(Rule(f"{dialect}.{name}", reading(function)) for name, function in functions.items())


class Node(site.Site):
    """An operation that is imported: its operands as values, and what rules ask."""

    def __init__(
        self, operation: Operation, operands: tuple[Value, ...], importer: Import, known: Mapping[int, Value]
    ) -> None:
        """`known` are the values that blocks of this operation may read."""
        super().__init__(importer)
        self.operation, self.operands, self.importer, self.reads = operation, operands, importer, known

    @property
    def op_type(self) -> str:
        return self.operation.name.split(".")[-1]

    @property
    def where(self) -> str:
        return self.operation.where

    @property
    def attrs(self) -> Mapping[str, Any]:
        return self.operation.attrs

    @property
    def x(self) -> Value:
        """The first operand."""
        return self.operands[0]

    @property
    def type(self) -> TensorType:
        """Of the first result."""
        found = self.operation.types[0]
        if UNKNOWN in found.shape:
            raise self.unsupported("to a size that is not known before it runs")
        return found

    @property
    def dtype(self) -> DType:
        """Of the first result."""
        return self.operation.types[0].dtype

    def shape_in(self, value: Value) -> tuple[Size, ...]:
        """The shape that a vector of integers holds: numbers, and sizes that are symbols."""
        found = self.sizes(value)
        if found is None:
            raise self.unsupported("to a shape that is computed from elements of a tensor")
        return found

    def axes(self, name: str) -> dict[str, tuple[int, ...]]:
        """The lists of integers in an attribute of dimension numbers; a single number is a list of one."""
        text = str(self.attrs[name])
        found = re.findall(r"(\w+) = (?:\[([\d, ]*)\]|(\d+))", text)
        return {key: tuple(int(n) for n in (many or one).split(",") if n.strip()) for key, many, one in found}

    def unsupported(self, what: str, hint: str = "docs/scale.md lists what is imported") -> UnsupportedError:
        return super().unsupported(what, hint)

    def inside(self, block: Block, arguments: Sequence[Value], captured: Mapping[int, Value]) -> tuple[Value, ...]:
        """The results of a block."""
        return self.importer.block(block, arguments, captured)

    def captured(self, *blocks: Block) -> tuple[dict[int, Value], dict[int, Value]]:
        """What blocks read from outside: constants, and values that must be passed."""
        read = {number: self.reads[number] for block in blocks for number in block.free}
        constants = {number: value for number, value in read.items() if value.op is leaf.CONST}
        return constants, {number: value for number, value in read.items() if number not in constants}


class Import(Importer):
    """One import of a module."""

    def __init__(
        self, module: Module, rules: Mapping[str, Rule], shapes: Sequence[tuple[Size, ...]] | None = None
    ) -> None:
        """`shapes` are those of the arguments, where the module leaves sizes open."""
        super().__init__(module.name)
        self.module, self.rules, self.shapes = module, rules, shapes

    def graph(self) -> Graph:
        """The function main."""
        self._refuse_missing()
        main = self.module.functions["main"]
        with self.builder.recording():
            inputs = [self.builder.input(n, t) for n, t in zip(self.module.inputs, self._types(main), strict=True)]
            for name, value in zip(self.module.outputs, self.block(main, inputs, {}), strict=True):
                self.builder.output(name, value)
        return self.builder.graph()

    def _types(self, main: Block) -> Sequence[TensorType]:
        """The types of the inputs, with symbols for sizes that are left open."""
        if self.shapes is not None and len(self.shapes) == len(main.types):
            return [TensorType(t.dtype, shape) for t, shape in zip(main.types, self.shapes, strict=True)]
        for type in main.types:
            if UNKNOWN in type.shape:
                raise UnsupportedError(
                    f"{type}: sizes that are not known",
                    hint="pass what jax.export gives, which has their names, or lower the function for numbers",
                )
        return main.types

    def block(self, block: Block, arguments: Sequence[Value], captured: Mapping[int, Value]) -> tuple[Value, ...]:
        """The results of a block for arguments."""
        known = {**captured, **dict(zip(block.arguments, arguments, strict=True))}
        for operation in block.operations:
            known.update(zip(operation.results, self._made(operation, known), strict=True))
        return tuple(known[number] for number in block.returned)

    def _made(self, operation: Operation, known: Mapping[int, Value]) -> tuple[Value, ...]:
        operands = tuple(known[number] for number in operation.operands)
        origins = (Origin("module", operation.where),) if operation.where else None
        with self.step(operation.name, lambda: operation.where, origins):
            callee = called(operation)
            if callee is not None:
                return self.block(self.module.functions[callee], operands, {})
            if operation.blocks and any(UNKNOWN in t.shape for b in operation.blocks for t in b.types):
                raise Node(operation, operands, self, known).unsupported("of sizes that are not known before it runs")
            made = self.rules[_key(operation)](Node(operation, operands, self, known))
            results = (made,) if isinstance(made, Value) else tuple(v for v in made if v is not None)
            _check(operation, results)
            return results

    def _refuse_missing(self) -> None:
        """One error for all operations without a rule, with how often and where each is used."""
        used = [operation for block in self.module.reached.values() for operation in block.every()]
        lacking = [o for o in used if called(o) is None and _key(o) not in self.rules]
        refuse(((_key(o), o.where) for o in lacking), "docs/scale.md lists those that are")


def _key(operation: Operation) -> str:
    """The name of an operation; a call of a library has that of the library's function."""
    return f"custom_call @{operation.attrs['call_target_name']}" if operation.name == CALL else operation.name


def _check(operation: Operation, results: tuple[Value, ...]) -> None:
    found = tuple(v.tensor for v in results)
    if len(found) != len(operation.types) or not all(map(_fits, found, operation.types)):
        raise LoadError(
            f"{operation.name} became {', '.join(map(str, found))}, not {', '.join(map(str, operation.types))}",
            hint="report it",
        )


def _fits(made: TensorType, said: TensorType) -> bool:
    """Whether a value has the type that a module says; sizes that it leaves open fit any."""
    if made.dtype is not said.dtype or len(made.shape) != len(said.shape):
        return False
    return all(b in (a, UNKNOWN) for a, b in zip(made.shape, said.shape, strict=True))


__all__ = ["Import", "Node", "of_operands", "rule"]
