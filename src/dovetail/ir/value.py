"""Ops and values. Values are immutable and interned: the same op, operands and attributes are the same object."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Hashable, Iterator, Mapping
from contextvars import ContextVar
from types import MappingProxyType
from typing import Any, ClassVar, Protocol

from dovetail.errors import DovetailError, TraceError, TypeRuleError
from dovetail.ir.dim import Size
from dovetail.ir.dtype import DType
from dovetail.ir.fact import Constraint, Facts
from dovetail.ir.type import TensorType, TupleType, Type

Attrs = Mapping[str, Any]


class Operators(Protocol):
    """How `x + y` and its kin are spelled in primitives; the ops room provides it."""

    def unary(self, name: str, x: Value) -> Value: ...

    def binary(self, name: str, x: object, y: object) -> Value: ...

    def item(self, x: Value, index: Any) -> Value: ...

    def reshape(self, x: Value, shape: Any) -> Value: ...

    def transpose(self, x: Value) -> Value: ...


class Op:
    """What a value computes: a name, a type rule and traits for passes. Primitives and declared ops are ops."""

    name: str
    commutative: bool = False
    elementwise: bool = False
    keeps_its_gradient: bool = False
    """Whether a value is differentiated as it stands: its gradient is an op that computes again what it needs."""
    differentiates_by_row: bool = False
    """Whether that gradient is one pass over rows."""
    branches: bool = False
    """Whether only one of its sub-graphs is run: what each takes for granted holds where it is run, and only there."""

    def infer(self, facts: Facts, operands: tuple[Type, ...], attrs: Mapping[str, Any]) -> Type:
        """Infer the type of the result; what it takes for granted goes into `facts`."""
        raise NotImplementedError

    def normal(self, operands: tuple[Value, ...], attrs: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the attributes in their one normal form; doing it twice changes nothing."""
        return attrs

    def expansion(self, operands: tuple[Value, ...], attrs: Mapping[str, Any]) -> Value | None:
        """Spell out the same value in lower ops; None for an op that is spelled no lower."""
        return None

    def pulled(
        self, value: Value, g: Value | tuple[Value | None, ...], indices: tuple[int, ...]
    ) -> tuple[Value | None, ...] | None:
        """Return the gradients of the operands of one of its values, as ops of their own; None: by the expansion."""
        return None

    def __str__(self) -> str:
        return self.name

    def __repr__(self) -> str:
        return f"<op {self.name}>"


class Listener(Protocol):
    """Notes values while a graph is built."""

    def note(self, value: Value) -> None: ...


class Value:
    """One node of a graph. Compared by identity, because equal values are identical."""

    __slots__ = ("__weakref__", "_attrs_key", "attrs", "constraints", "known_type", "op", "operands")

    operators: ClassVar[Operators]

    op: Op
    operands: tuple[Value, ...]
    attrs: Attrs
    constraints: tuple[Constraint, ...]
    known_type: Type | None
    """The type, or None inside a pattern."""
    _attrs_key: Hashable

    def __init__(
        self,
        op: Op,
        operands: tuple[Value, ...],
        attrs: Attrs,
        type: Type | None,
        constraints: tuple[Constraint, ...],
        key: Hashable = None,
    ) -> None:
        self.op = op
        self.operands = operands
        self.attrs = attrs
        self.known_type = type
        self.constraints = constraints
        self._attrs_key = key

    @property
    def type(self) -> Type:
        type = self.known_type
        if type is None:
            raise TraceError(
                f"{self.op.name} has no type while a pattern is traced",
                hint="ask about shapes and dtypes in a guard, not in the body",
            )
        return type

    @property
    def attrs_key(self) -> Hashable:
        """The attributes as a key; values that are alike share it."""
        key = self._attrs_key
        if key is None:
            key = self._attrs_key = attrs_key(self.attrs)
        return key

    @property
    def tensor(self) -> TensorType:
        """The type of a value that is one tensor."""
        type = self.type
        if isinstance(type, TupleType):
            raise TypeRuleError(
                f"{self.op.name} has {len(type.items)} results, and one tensor is wanted", hint="take one: value[0]"
            )
        return type

    @property
    def shape(self) -> tuple[Size, ...]:
        type = self.known_type
        return type.shape if isinstance(type, TensorType) else self.tensor.shape

    @property
    def dtype(self) -> DType:
        return self.tensor.dtype

    @property
    def rank(self) -> int:
        return len(self.shape)

    def with_operands(self, operands: tuple[Value, ...]) -> Value:
        """Return the same op and attributes on other operands."""
        return self if operands == self.operands else make(self.op, operands, self.attrs, like=self)

    def __add__(self, other: Value | float) -> Value:
        return self.operators.binary("add", self, other)

    def __radd__(self, other: float) -> Value:
        return self.operators.binary("add", other, self)

    def __sub__(self, other: Value | float) -> Value:
        return self.operators.binary("sub", self, other)

    def __rsub__(self, other: float) -> Value:
        return self.operators.binary("sub", other, self)

    def __mul__(self, other: Value | float) -> Value:
        return self.operators.binary("mul", self, other)

    def __rmul__(self, other: float) -> Value:
        return self.operators.binary("mul", other, self)

    def __truediv__(self, other: Value | float) -> Value:
        return self.operators.binary("div", self, other)

    def __rtruediv__(self, other: float) -> Value:
        return self.operators.binary("div", other, self)

    def __pow__(self, other: Value | float) -> Value:
        return self.operators.binary("pow", self, other)

    def __matmul__(self, other: Value) -> Value:
        return self.operators.binary("matmul", self, other)

    def __neg__(self) -> Value:
        return self.operators.unary("neg", self)

    def __lt__(self, other: Value | float) -> Value:
        return self.operators.binary("less", self, other)

    def __le__(self, other: Value | float) -> Value:
        return self.operators.binary("less_equal", self, other)

    def __gt__(self, other: Value | float) -> Value:
        return self.operators.binary("greater", self, other)

    def __ge__(self, other: Value | float) -> Value:
        return self.operators.binary("greater_equal", self, other)

    def __bool__(self) -> bool:
        raise TraceError(
            f"the truth of {self!r} is not known while a graph is written",
            hint="choose with ops.where or ops.if_, compare elements with ops.equal, and test for None with `is None`",
        )

    @property
    def T(self) -> Value:
        """The axes in reverse order, as NumPy has it."""
        return self.operators.transpose(self)

    def reshape(self, *shape: Any) -> Value:
        """Return the same elements in another shape; one size may be -1."""
        return self.operators.reshape(self, shape[0] if len(shape) == 1 else shape)

    def __getitem__(self, index: Any) -> Value:
        """Return one result of an op that has several; of a tensor elements, by integers, slices, `...` and None."""
        return self.operators.item(self, index)

    def __iter__(self) -> Iterator[Value]:
        """Return the results of an op that has several, one by one."""
        type = self.type
        if not isinstance(type, TupleType):
            raise TypeRuleError(f"{self.op.name} has one result, and several are wanted", hint="use part or slice")
        return iter([self[index] for index in range(len(type.items))])

    def __repr__(self) -> str:
        name = self.attrs.get("name", self.op.name)
        return f"<{name}: {self.known_type}>" if self.known_type is not None else f"<{name}>"


_EMPTY: Attrs = MappingProxyType({})


class _Interned(weakref.ref[Value]):
    """The one value of a key."""

    __slots__ = ("key",)

    key: Hashable


_interned: dict[Hashable, _Interned] = {}
"""A WeakValueDictionary would take twice as long for each of the lookups, which compiling consists of."""
_lock = threading.RLock()
"""One that its holder may take again: the collector calls `_forget` in any thread and at any time."""
listening: ContextVar[Listener | None] = ContextVar("dovetail_recorder", default=None)
"""The listener of values that this context makes; `ir.origin` sets it."""


def make(op: Op, operands: tuple[Value, ...], attrs: Attrs = _EMPTY, *, like: Value | None = None) -> Value:
    """Return the one value with this op, these operands and these (already normal) attributes.

    `like` is a value of the same op and attributes; on operands of the same types it has the type of the result.
    """
    chosen = attrs_key(attrs) if like is None else like.attrs_key
    key = (op, operands, chosen) if attrs else (op, operands)
    known = _interned.get(key)
    existing = None if known is None else known()
    if existing is None:
        if like is not None and _same_types(like.operands, operands):
            fresh = Value(op, operands, like.attrs, like.known_type, like.constraints, chosen)
        else:
            type, constraints = _infer(op, operands, attrs)
            kept = MappingProxyType(dict(attrs)) if attrs else _EMPTY
            fresh = Value(op, operands, kept, type, constraints, chosen)
        existing = _intern(key, fresh)
    listener = listening.get()
    if listener is not None:
        listener.note(existing)
    return existing


def _intern(key: Hashable, fresh: Value) -> Value:
    """Return the value of a key: the fresh one, unless another thread was faster."""
    reference = _Interned(fresh, _forget)
    reference.key = key
    with _lock:
        known = _interned.setdefault(key, reference)
        existing = known()
        if existing is None:  # it has died, and its callback has not run yet
            _interned[key] = reference
            return fresh
    return existing


def _forget(dead: weakref.ref[Value], known: dict[Hashable, _Interned] = _interned, lock: Any = _lock) -> None:
    """Drop the entry of a value that has died, unless another one has its place. Also while Python shuts down."""
    assert isinstance(dead, _Interned), "made by `_intern`"
    with lock:
        if known.get(dead.key) is dead:
            del known[dead.key]


def _same_types(some: tuple[Value, ...], others: tuple[Value, ...]) -> bool:
    """Return whether operands have the same types, one by one; a pattern's have none."""
    if len(some) != len(others):
        return False
    for one, other in zip(some, others, strict=True):
        type = other.known_type
        if type is None or (one.known_type is not type and one.known_type != type):
            return False
    return True


def is_interned(value: Value) -> bool:
    """Return whether this is the one value with its op, operands and attributes."""
    attrs = value.attrs
    key = (value.op, value.operands, attrs_key(attrs)) if attrs else (value.op, value.operands)
    known = _interned.get(key)
    return known is not None and known() is value


def attrs_key(attrs: Attrs) -> Hashable:
    """Attributes as a key, in their order, distinct where == would not be."""
    if not attrs:
        return ()
    return tuple([(name, value if value.__class__ in _PLAIN else _exact(value)) for name, value in attrs.items()])


def _exact(value: Any) -> Hashable:
    """== takes 1, 1.0 and True for one, and 0.0 for -0.0; NaN it tells from itself."""
    if value.__class__ in _PLAIN:
        return value
    if isinstance(value, float):
        return (float, value.hex())
    if isinstance(value, bool):
        return (bool, value)
    if isinstance(value, tuple):
        return tuple([_exact(item) for item in value])  # pyright: ignore[reportUnknownVariableType]
    return value


_PLAIN = frozenset((int, str, type(None), DType, TensorType))
"""Classes whose values == tells apart as it should."""


def _infer(op: Op, operands: tuple[Value, ...], attrs: Attrs) -> tuple[Type | None, tuple[Constraint, ...]]:
    types: list[Type] = []
    for operand in operands:
        type = operand.known_type
        if type is None:
            return None, ()
        types.append(type)
    facts = Facts(op.name)
    try:
        result = op.infer(facts, tuple(types), attrs)
    except DovetailError as error:
        if not error.where:
            error.where = describe(op, types)
        raise
    return result, tuple(facts.recorded)


def describe(op: Op, types: list[Type]) -> str:
    return f"{op.name}({', '.join(map(str, types))})"
