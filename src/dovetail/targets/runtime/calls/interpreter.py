"""The plain interpreter: one value after the other by its NumPy meaning. It judges everything else."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias, cast

import numpy as np

from dovetail.dataclass import dataclass
from dovetail.errors import BindError, DovetailError, GraphError, UnsupportedError
from dovetail.ir import dim, leaf
from dovetail.ir.dim import Dim, Size
from dovetail.ir.dtype import DType, bf16, c64, f16, f32, f64, i64
from dovetail.ir.fact import Constraint
from dovetail.ir.graph import Graph, Subgraph
from dovetail.ir.literal import Array, Literal
from dovetail.ir.solve import Found, solve_symbols
from dovetail.ir.type import TensorType, Type, tensors
from dovetail.ir.value import Value, make
from dovetail.ir.walk import walk
from dovetail.ops.generate import counting
from dovetail.ops.movement import split, split_of_nothing
from dovetail.ops.primitive import Primitive
from dovetail.passes.specialize import fresh_symbols, value_symbols
from dovetail.targets.runtime.arrays.feeds import bind_leaves, check_array, named_leaf
from dovetail.targets.runtime.arrays.memory_limit import ALWAYS_FITS, check_fits


@dataclass(frozen=True, slots=True)
class EvaluationOrder:
    """The values that some outputs need, in the order in which they run, and how often each is read."""

    order: list[Value]
    readers: Mapping[Value, int]
    results: frozenset[Value]

    @staticmethod
    def of(outputs: Sequence[Value], leaves: Container[Value], sizes: Container[str]) -> EvaluationOrder:
        order = _after_binders(walk(outputs, until=leaves), leaves, sizes)
        readers = dict.fromkeys(order, 0)
        for value in order:
            if value not in leaves:
                for operand in value.operands:
                    readers[operand] += 1
        return EvaluationOrder(order, readers, frozenset(outputs))


def _after_binders(order: list[Value], leaves: Container[Value], sizes: Container[str]) -> list[Value]:
    """The order with every value after those that find the sizes it mentions, where the run finds any."""
    binders = {n: v for v in order if v not in leaves for n in fresh_symbols(v) if n not in sizes}
    if not binders:
        return order
    ordered: dict[Value, None] = {}
    opened: set[Value] = set()
    stack = order[::-1]
    while stack:
        value = stack[-1]
        if value in ordered or value in opened or value in leaves:
            ordered.setdefault(stack.pop())
            continue
        opened.add(value)
        asked = {n: None for n in value_symbols(value) if n in binders}
        stack += [v for v in (*value.operands, *(binders[n] for n in asked)) if v not in opened]
    return list(ordered)


Result: TypeAlias = Array | tuple[Array, ...]

_C128 = DType("c128", np.dtype(np.complex128), "complex", 128)
_LIFTED: dict[DType, DType] = {f16: f64, bf16: f64, f32: f64, c64: _C128}


def evaluate(
    graph: Graph,
    feeds: Mapping[str, Array],
    *,
    lift: bool = False,
    params: Mapping[str, Array] | None = None,
    sizes: Mapping[str, int] | None = None,
) -> dict[str, Array]:
    """The outputs of a graph by name. `lift` computes floats in float64; `sizes` binds symbols that no shape does."""
    leaves = bind_leaves(graph, feeds, params, accepts=_fits_lifted if lift else None)
    interpreter = _Interpreter(lift, graph.where)
    scope = _Scope(_solve(leaves, sizes), graph.constraints)
    results = interpreter.outputs(list(graph.outputs.values()), leaves, scope)
    return dict(zip(graph.outputs, results, strict=True))


def evaluate_values(
    outputs: Sequence[Value],
    leaves: Mapping[Value, Array],
    *,
    lift: bool = False,
    sizes: Mapping[str, int] | None = None,
    limit: int = 0,
) -> list[Array]:
    """Compute the arrays of some values from those of others; operands of a known value are not computed.

    `limit` is the most bytes that one of them may have; 0 is what the machine has left.
    """
    accepts = _fits_lifted if lift else None
    checked = {v: check_array(named_leaf(v), v, array, accepts) for v, array in leaves.items()}
    constraints = _constraints(v for v in walk(outputs, until=checked) if v not in checked)
    return _Interpreter(lift, limit=limit).outputs(outputs, checked, _Scope(_solve(checked, sizes), constraints))


def evaluate_in_turn(
    outputs: Sequence[Value],
    leaves: Mapping[Value, Array],
    *,
    lift: bool = False,
    packed: bool = False,
    sizes: Mapping[str, int] | None = None,
) -> Iterator[tuple[Value, Result]]:
    """Each of the outputs as soon as it is known, in the order in which they are listed, operands first.

    A caller that wants thousands of values keeps what it needs: an array is dropped after its last reader. If `packed`,
    every array is stored in the order of its axes: a matmul adds in another order where an operand has other strides.
    """
    interpreter = _Interpreter(lift, packed=packed)
    scope = _Scope(_solve(leaves, sizes), _constraints(walk(outputs, until=leaves)))
    return interpreter.in_turn(outputs, _CastLeaves(leaves, interpreter), scope)


def _solve(leaves: Mapping[Value, Array], sizes: Mapping[str, int] | None) -> dict[str, int]:
    return solve_symbols([Found(named_leaf(v), v.tensor, array.shape) for v, array in leaves.items()], sizes)


def _fits_lifted(declared: DType, actual: DType) -> bool:
    return _LIFTED.get(declared) is actual


def _constraints(values: Iterable[Value]) -> tuple[Constraint, ...]:
    return tuple(dict.fromkeys(c for v in values for c in v.constraints))


def known_size(size: Size, sizes: Mapping[str, int]) -> Size:
    """A size as a number, where its symbols are known."""
    return size if isinstance(size, Dim) and not dim.symbols(size) <= sizes.keys() else dim.evaluate(size, sizes)


def _cast(array: Array, dtype: np.dtype[Any]) -> Array:
    with np.errstate(all="ignore"):
        return np.asarray(array, dtype=dtype)


@dataclass(frozen=True, slots=True)
class _Expansion:
    """The body of a declared op, on one slot for each operand."""

    slots: tuple[Value, ...]
    spelled: Value
    constraints: tuple[Constraint, ...]
    schedule: EvaluationOrder | None
    """None where running it binds sizes: then the order depends on the sizes that are known."""


class _CastLeaves(Mapping[Value, Result]):
    """Leaves in the dtype of the computation, cast when they are read: in float64 weights take twice the memory."""

    def __init__(self, leaves: Mapping[Value, Array], interpreter: _Interpreter) -> None:
        self._leaves = leaves
        self._interpreter = interpreter

    def __getitem__(self, value: Value) -> Array:
        return _cast(self._leaves[value], self._interpreter.dtype(value.tensor.dtype).numpy)

    def __contains__(self, value: object) -> bool:
        return value in self._leaves

    def __iter__(self) -> Iterator[Value]:
        return iter(self._leaves)

    def __len__(self) -> int:
        return len(self._leaves)


class _Scope:
    """The sizes that are known so far, and what must still hold of the others."""

    def __init__(self, sizes: Mapping[str, int], constraints: Iterable[Constraint]) -> None:
        self.sizes = dict(sizes)
        self.fitted: dict[TensorType, tuple[int, ...]] = {}
        self.counted: dict[TensorType, int] = {}
        self.symbolic: dict[TensorType, Size] = {}
        self.open = list(constraints)
        self._check()

    def fit(self, name: str, type: TensorType, shape: tuple[int, ...]) -> None:
        """The shape is the one that the type declares; symbols that are met for the first time are bound."""
        if shape == type.shape or self.fitted.get(type) == shape:
            return
        known = solve_symbols([Found(name, type, shape)], self.sizes)
        self.fitted[type] = shape
        if len(known) > len(self.sizes):
            self.sizes = known
            self._check()

    def bytes(self, type: TensorType) -> int | None:
        """How many bytes a tensor has; None where its sizes are not known yet."""
        count = self.counted.get(type)
        if count is None:
            size = self.symbolic.get(type)
            if size is None:
                size = self.symbolic[type] = type.bytes
            if isinstance(size, Dim):
                if not dim.symbols(size) <= self.sizes.keys():
                    return None
                size = dim.evaluate(size, self.sizes)
            count = self.counted[type] = size
        return count

    def inner(self, constraints: Iterable[Constraint]) -> _Scope:
        """A scope for a body of its own: it sees these sizes, and what it binds stays inside."""
        scope = _Scope(self.sizes, constraints)
        scope.counted, scope.symbolic = dict(self.counted), self.symbolic
        return scope

    def _check(self) -> None:
        self.open = [c for c in self.open if c.bind(self.sizes) is not None]


class _Body:
    """A sub-graph as a function of arrays: what control flow runs."""

    def __init__(self, interpreter: _Interpreter, body: Subgraph, scope: _Scope) -> None:
        self.interpreter = interpreter
        self.body = body
        self.scope = scope
        self.constraints = _constraints(body.values)
        self.slots = tuple(leaf.argument(i, t) for i, t in enumerate(body.arguments))
        self.schedule: EvaluationOrder | None = None
        self.constants: dict[Value, Result] = {}

    @property
    def results(self) -> tuple[TensorType, ...]:
        """The types of the results, with their sizes as numbers."""
        return tuple(self.interpreter.bound(v.tensor, self.scope) for v in self.body.results)

    def __call__(self, *arguments: Array) -> tuple[Array, ...]:
        scope = self.scope.inner(self.constraints)
        for slot, array in zip(self.slots, arguments, strict=True):
            scope.fit("an argument of a body", slot.tensor, array.shape)
        schedule = self.schedule or self._prepared()
        leaves = dict(zip(self.slots, arguments, strict=True)) | self.constants
        results = dict(self.interpreter.scheduled(schedule, leaves, scope))
        return tuple(cast(Array, results[v]) for v in self.body.results)

    def _prepared(self) -> EvaluationOrder:
        """Order the body and convert its constants, once for all trips."""
        constants = [v for v in self.body.values if v.op is leaf.CONST]
        self.constants = {v: self.interpreter.value(v, [], self.scope) for v in constants}
        self.schedule = EvaluationOrder.of(self.body.results, {*self.slots, *constants}, self.scope.sizes)
        return self.schedule


class _Interpreter:
    """Runs values in one dtype policy; a declared op runs as what its body spells out."""

    def __init__(
        self, lift: bool, where: Callable[[Value], str] = lambda value: "", limit: int = 0, packed: bool = False
    ) -> None:
        self.lift = lift
        self.packed = packed
        self.limit = limit
        self.where = where
        self.expansions: dict[Value, _Expansion] = {}

    def outputs(self, outputs: Sequence[Value], leaves: Mapping[Value, Array], scope: _Scope) -> list[Array]:
        """The results as arrays that the caller owns."""
        for value in outputs:
            if not isinstance(value.type, TensorType):
                raise GraphError(f"an output is {value.type}, several results at once", hint="name each: value[0], …")
        arrays = {v: _cast(array, self.dtype(v.tensor.dtype).numpy) for v, array in leaves.items()}
        return [np.array(result) for result in self.values(outputs, arrays, scope)]

    def values(self, outputs: Sequence[Value], leaves: Mapping[Value, Result], scope: _Scope) -> list[Result]:
        results = dict(self.in_turn(outputs, leaves, scope))
        return [results[v] for v in outputs]

    def in_turn(
        self, outputs: Sequence[Value], leaves: Mapping[Value, Result], scope: _Scope
    ) -> Iterator[tuple[Value, Result]]:
        """Every value once, operands and what binds its sizes first; each is dropped after its last reader."""
        return self.scheduled(EvaluationOrder.of(outputs, leaves, scope.sizes), leaves, scope)

    def scheduled(
        self, schedule: EvaluationOrder, leaves: Mapping[Value, Result], scope: _Scope
    ) -> Iterator[tuple[Value, Result]]:
        """Run the values in their order, and yield the results."""
        readers, outputs = dict(schedule.readers), schedule.results
        results: dict[Value, Result] = {}
        for value in schedule.order:
            if value in leaves:
                if value in outputs:
                    yield value, leaves[value]
                continue
            operands = [leaves[v] if v in leaves else results[v] for v in value.operands]
            result = self.value(value, operands, scope)
            if readers[value]:
                results[value] = result
            if value in outputs:
                yield value, result
            for operand in value.operands:
                readers[operand] -= 1
                if not readers[operand]:
                    results.pop(operand, None)

    def value(self, value: Value, operands: list[Result], scope: _Scope) -> Result:
        try:
            return self.fit(value, self.compute(value, operands, scope), scope)
        except DovetailError as error:
            error.where = error.where or self.where(value)
            raise
        except MemoryError as error:
            raise BindError(
                f"{value.op.name} needs more memory than there is",
                hint="run it with smaller inputs",
                where=self.where(value),
            ) from error
        except (ArithmeticError, LookupError, TypeError, ValueError) as error:
            raise BindError(
                f"{value.op.name} cannot be computed: {error}",
                hint="check the numbers that it is given, such as indices out of range",
                where=self.where(value),
            ) from error

    def compute(self, value: Value, operands: list[Result], scope: _Scope) -> Result:
        op = value.op
        if isinstance(op, Primitive):
            self.check_fits(value, scope)
            if value.op is counting and (count := int(cast(Array, operands[0]))) > 0:
                check_fits(count * i64.itemsize, f"counting up to {count:,}", self.limit)
            attrs = {k: self.attribute(a, scope, op.kinds[k].name == "fresh") for k, a in value.attrs.items()}
            if op is split:
                attrs = split_of_nothing(attrs, [known_size(size, scope.sizes) for size in value.shape])
            return op.compute(*cast(list[Array], operands), **attrs)
        if op is leaf.CONST:
            return cast(Literal, value.attrs["value"]).array
        if op is leaf.ITEM:
            return operands[0][int(value.attrs["index"])]
        if op is leaf.PACK:
            return tuple(cast(list[Array], operands))
        if op is leaf.INPUT or op is leaf.PARAM or op is leaf.ARGUMENT:
            raise BindError(f"{named_leaf(value)} ({value.type}) is missing", hint="pass an array for it")
        body = self.expand(value)
        leaves, inner = dict(zip(body.slots, operands, strict=True)), scope.inner(body.constraints)
        if body.schedule is None:
            return self.values([body.spelled], leaves, inner)[0]
        return dict(self.scheduled(body.schedule, leaves, inner))[body.spelled]

    def check_fits(self, value: Value, scope: _Scope) -> None:
        """Results whose sizes are known before they are computed must fit in memory."""
        for type in tensors(value.type):
            size = scope.bytes(type)
            # Most are small, and the words cost more than the comparison.
            if size is not None and (size > ALWAYS_FITS or self.limit):
                check_fits(size, f"the result of {value.op.name}, {type},", self.limit)

    def expand(self, value: Value) -> _Expansion:
        """The body of a declared op; equal calls share one."""
        slots = tuple(make(leaf.ARGUMENT, (), {"index": i, "type": v.type}) for i, v in enumerate(value.operands))
        call = value.with_operands(slots)
        if call not in self.expansions:
            spelled = value.op.expansion(slots, value.attrs)
            if spelled is None:
                raise UnsupportedError(
                    f"{value.op.name} has neither a NumPy meaning nor a body", hint="build it from primitives"
                )
            inside = walk([spelled])
            binds = any(True for v in inside for _ in fresh_symbols(v))
            schedule = None if binds else EvaluationOrder.of([spelled], slots, ())
            self.expansions[call] = _Expansion(slots, spelled, _constraints(inside), schedule)
        return self.expansions[call]

    def attribute(self, attr: Any, scope: _Scope, fresh: bool) -> Any:
        """An attribute as a meaning takes it: sizes are numbers, sub-graphs are functions, dtypes follow the lift."""
        match attr:
            case Dim():
                # The symbol of a data-dependent size stays: the result binds it.
                return (
                    attr if fresh and not dim.symbols(attr) <= scope.sizes.keys() else dim.evaluate(attr, scope.sizes)
                )
            case tuple():
                return tuple(self.attribute(a, scope, fresh) for a in cast(tuple[Any, ...], attr))
            case DType():
                return self.dtype(attr)
            case TensorType():
                return self.bound(attr, scope)
            case Subgraph():
                return _Body(self, attr, scope)
            case _:
                return attr

    def fit(self, value: Value, result: Result, scope: _Scope) -> Result:
        """The result in the dtype and shape that the value's type declares."""
        type: Type = value.type
        if isinstance(type, TensorType):
            return self.fit_tensor(f"the result of {value.op.name}", type, cast(Array, result), scope)
        if len(result) != len(type.items):
            raise BindError(f"{value.op.name} gave {len(result)} results, and its type is {type}", hint="check the op")
        named = [f"result {i} of {value.op.name}" for i in range(len(type.items))]
        return tuple(self.fit_tensor(n, t, a, scope) for n, t, a in zip(named, type.items, result, strict=True))

    def fit_tensor(self, name: str, type: TensorType, array: Array, scope: _Scope) -> Array:
        scope.fit(name, type, array.shape)
        dtype = self.dtype(type.dtype).numpy
        fitted = array if array.dtype == dtype else _cast(array, dtype)
        return np.asarray(fitted, order="C") if self.packed else fitted

    def dtype(self, dtype: DType) -> DType:
        return _LIFTED.get(dtype, dtype) if self.lift else dtype

    def bound(self, type: TensorType, scope: _Scope) -> TensorType:
        return TensorType(self.dtype(type.dtype), tuple(known_size(s, scope.sizes) for s in type.shape))
