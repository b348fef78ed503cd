"""A primitive is one entry in one place: its NumPy meaning, its type rule, its traits, its cost, its gradient.

The meaning is a plain function. Its positional parameters are the operands, its keyword-only parameters the
attributes; their annotations say how an attribute is brought to its one normal form.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, TypeAlias, cast, get_args, get_origin, get_type_hints

import numpy as np

from dovetail.dataclass import dataclass
from dovetail.errors import TraceError, TypeRuleError
from dovetail.ir import leaf
from dovetail.ir.dim import Dim, Size, symbols
from dovetail.ir.dtype import BY_NAME, DType
from dovetail.ir.fact import Facts
from dovetail.ir.graph import Subgraph
from dovetail.ir.leaf import DTypeOf, Hole, SizeOf
from dovetail.ir.literal import Array
from dovetail.ir.type import TensorType, Type, tensors
from dovetail.ir.value import Op, Value, make
from dovetail.ops.gradient import Gradient

Operand: TypeAlias = Value | complex | Hole
"""What a builder takes for a tensor: a value, or a number that takes the dtype of its partner."""


@dataclass(frozen=True, slots=True)
class Kind:
    """How an attribute is brought to its normal form: from what the caller wrote and the first operand's rank."""

    name: str
    normal: Callable[[Any, int | None], Any]


def axis_from_end(axis: Any, rank: int | None) -> int:
    """Axes are counted from the end, so that a pattern fits whatever stands in front."""
    axis = _whole(axis, rank)
    if axis >= 0 and rank is None:
        raise TraceError(f"axis {axis} is counted from the front inside a pattern", hint="count axes from the end: -1")
    if rank is not None:
        if not -rank <= axis < rank:
            raise TypeRuleError(f"axis {axis} of a tensor of rank {rank}", hint=f"axes go from {-rank} to {rank - 1}")
        if axis >= 0:
            axis -= rank
    return axis


def _axes(axes: Any, rank: int | None) -> tuple[int, ...]:
    listed = [axes] if isinstance(axes, int) else list(axes)
    normalized = sorted(axis_from_end(a, rank) for a in listed)
    if len(set(normalized)) != len(normalized):
        raise TypeRuleError(f"axes {listed} name one axis twice", hint="name each axis once")
    return tuple(normalized)


def _whole(number: Any, rank: int | None) -> int:
    if number.__class__ is int:
        return number
    if isinstance(number, bool | np.bool_) or not isinstance(number, int | np.integer):
        raise TypeRuleError(f"{number!r} where an integer is wanted", hint="pass an int")
    return int(cast(int, number))


def _size(size: Any, rank: int | None) -> Size:
    return size if isinstance(size, Dim) else _whole(size, rank)


def _fresh(size: Any, rank: int | None) -> Size:
    if isinstance(size, Dim) and str(size) not in symbols(size):
        raise TypeRuleError(f"the size {size} cannot be bound by a result", hint='give it a name: symbol("n")')
    return _size(size, rank)


def _dtype(dtype: Any, rank: int | None) -> DType:
    if isinstance(dtype, str) and dtype in BY_NAME:
        return BY_NAME[dtype]
    if not isinstance(dtype, DType):
        raise TypeRuleError(f"{dtype!r} is not a dtype", hint=f"use one of {', '.join(BY_NAME)}")
    return dtype


def _many(kind: Callable[[Any, int | None], Any]) -> Callable[[Any, int | None], Any]:
    return lambda items, rank: tuple(kind(i, rank) for i in items)


def _exactly(type: type) -> Callable[[Any, int | None], Any]:
    def normal(value: Any, rank: int | None) -> Any:
        if not isinstance(value, type):
            raise TypeRuleError(f"{value!r} where a {type.__name__} is wanted", hint=f"pass a {type.__name__}")
        return value

    return normal


Axis = Annotated[int, Kind("axis", axis_from_end)]
"""An axis of the first operand, counted from the end."""
Axes = Annotated[tuple[int, ...], Kind("axes", _axes)]
"""Axes of the first operand, counted from the end, in rising order."""
SizeAttr = Annotated[Any, Kind("size", _size)]
"""An int or a symbolic size; an int by the time the meaning is asked."""
Fresh = Annotated[Any, Kind("fresh", _fresh)]
"""A size that depends on data: a symbol that running the op binds, or an int that its result must have."""
Freshes = Annotated[tuple[Any, ...], Kind("fresh", _many(_fresh))]
Sizes = Annotated[tuple[Any, ...], Kind("sizes", _many(_size))]
Ints = Annotated[tuple[int, ...], Kind("ints", _many(_whole))]
DTypeAttr = Annotated[DType, Kind("dtype", _dtype)]
Body = Annotated[Any, Kind("body", _exactly(Subgraph))]
"""A sub-graph; a function of arrays by the time the meaning is asked."""

_PLAIN: dict[Any, Kind] = {
    int: Kind("int", _whole),
    float: Kind("float", lambda x, rank: float(x)),
    bool: Kind("bool", lambda x, rank: bool(x)),
    str: Kind("str", _exactly(str)),
    Any: Kind("any", lambda x, rank: x),
}

TypeRule = Callable[..., Type]
Flops = Callable[[Type, tuple[Type, ...], Mapping[str, Any]], Size]
CostKind = Callable[[tuple[Type, ...], Mapping[str, Any]], str]
"""From the types of operands and the attributes to the name of a cost kind, as in "conv.depthwise"."""

MAP = "map"
"""The cost kind of work that is no contraction."""


def one_per_element(result: Type, operands: tuple[Type, ...], attrs: Mapping[str, Any]) -> Size:
    return sum_counts(result)


def sum_counts(type: Type) -> Size:
    total: Size = 0
    for tensor in tensors(type):
        total = total + tensor.count
    return total


def no_flops(result: Type, operands: tuple[Type, ...], attrs: Mapping[str, Any]) -> Size:
    return 0


class Primitive(Op):
    """An op with a NumPy meaning. Calling it builds a value."""

    def __init__(
        self,
        name: str,
        meaning: Callable[..., Any],
        type_rule: TypeRule,
        *,
        flops: Flops = one_per_element,
        cost_kind: CostKind | str = MAP,
        commutative: bool = False,
        elementwise: bool = False,
        view: bool = False,
        branches: bool = False,
        pull: Gradient | None = None,
        doc: str = "",
    ) -> None:
        self.name = name
        self.meaning = meaning
        self.type_rule = type_rule
        self.flops = flops
        self._cost_kind = cost_kind
        self.commutative = commutative
        self.elementwise = elementwise
        self.view = view
        self.branches = branches
        self.pull = pull
        self.doc = doc or (inspect.getdoc(meaning) or "").split("\n")[0]
        parameters = _parameters(meaning)
        self.kinds, self.defaults = _attributes(meaning, parameters)
        self.arity = _arity(parameters)
        self.__name__ = name
        self.__doc__ = f"{name}({_spelled(parameters)})\n\n{self.doc.rstrip('.')}."

    def cost_kind(self, operands: tuple[Type, ...], attrs: Mapping[str, Any]) -> str:
        """Return the kind that decides its share of the peak arithmetic. A dot refines a kind: "conv.depthwise"."""
        kind = self._cost_kind
        return kind if isinstance(kind, str) else kind(operands, attrs)

    def __call__(self, *operands: Operand, **attrs: Any) -> Value:
        values = as_values(operands)
        return make(self, values, self.normal(values, attrs))

    def normal(self, operands: tuple[Value, ...], attrs: Mapping[str, Any]) -> dict[str, Any]:
        """Return the attributes in their normal form, in the order of the signature, defaults filled in."""
        if self.arity is not None and len(operands) != self.arity:
            raise TypeRuleError(f"{self.name} of {len(operands)} operands", hint=f"it takes {self.arity}")
        if not self.kinds and not attrs:
            return {}
        unknown = [k for k in attrs if k not in self.kinds]
        if unknown:
            raise TypeRuleError(
                f"{self.name} has no attribute {unknown[0]!r}", hint=f"it has {', '.join(self.kinds) or 'none'}"
            )
        first = operands[0].known_type if operands else None
        rank = first.rank if isinstance(first, TensorType) else None
        normalized: dict[str, Any] = {}
        for name, kind in self.kinds.items():
            attribute = attrs[name] if name in attrs else self.defaults.get(name, inspect.Parameter.empty)
            if attribute is inspect.Parameter.empty:
                raise TypeRuleError(f"{self.name} needs {name}", hint=f"pass {name}=…")
            normalized[name] = attribute if _is_caught(attribute) else self._attribute(name, kind, attribute, rank)
        return normalized

    def _attribute(self, name: str, kind: Kind, attribute: Any, rank: int | None) -> Any:
        if attribute is None and self.defaults.get(name, inspect.Parameter.empty) is None:
            return None
        try:
            return kind.normal(attribute, rank)
        except (TypeError, ValueError):
            raise TypeRuleError(f"{self.name} with {name}={attribute!r}", hint=f"{name} is: {kind.name}") from None

    def infer(self, facts: Facts, operands: tuple[Type, ...], attrs: Mapping[str, Any]) -> Type:
        if not operands and any(_is_caught(a) for a in attrs.values()):
            return None  # type: ignore[return-value]  # a leaf of a pattern, like a hole
        return self.type_rule(facts, *operands, **attrs)

    def compute(self, *arrays: Array, **attrs: Any) -> Array | tuple[Array, ...]:
        """Compute the meaning as IEEE has it: infinities and NaN are results, never warnings."""
        with np.errstate(all="ignore"):
            result: Array | tuple[Array, ...] = self.meaning(*arrays, **attrs)
        return tuple(np.asarray(r) for r in result) if isinstance(result, tuple) else np.asarray(result)


_CAUGHT = (Hole, SizeOf, DTypeOf)


def _is_caught(attr: Any) -> bool:
    """Return whether an attribute of a pattern is caught from the graph or compared with it, in whole or in part."""
    if isinstance(attr, tuple):
        return any([_is_caught(a) for a in cast(tuple[Any, ...], attr)])
    return isinstance(attr, _CAUGHT)


def _parameters(meaning: Callable[..., Any]) -> tuple[inspect.Parameter, ...]:
    """Operands, then attributes. The options of a ufunc are no attributes."""
    if isinstance(meaning, np.ufunc):
        return tuple([inspect.Parameter(name, inspect.Parameter.POSITIONAL_ONLY) for name in "xyz"[: meaning.nin]])
    return tuple(inspect.signature(meaning).parameters.values())


def _attributes(
    meaning: Callable[..., Any], parameters: Sequence[inspect.Parameter]
) -> tuple[dict[str, Kind], dict[str, Any]]:
    attributes = [parameter for parameter in parameters if parameter.kind is parameter.KEYWORD_ONLY]
    hints = get_type_hints(meaning, include_extras=True) if attributes else {}
    kinds = {attribute.name: _kind(hints.get(attribute.name, Any)) for attribute in attributes}
    return kinds, {a.name: a.default for a in attributes if a.default is not a.empty}


def _kind(hint: Any) -> Kind:
    if hint in _PLAIN:
        return _PLAIN[hint]
    for part in get_args(hint):
        if isinstance(part, Kind):
            return part
    inner = [a for a in get_args(hint) if a is not type(None)]
    if get_origin(hint) is not None and inner and isinstance(inner[0], str):
        return Kind("choice", _one_of(inner))
    return _kind(inner[0]) if len(inner) == 1 else _PLAIN[Any]


def _one_of(choices: list[str]) -> Callable[[Any, int | None], Any]:
    def normal(value: Any, rank: int | None) -> Any:
        if value not in choices:
            raise TypeRuleError(f"{value!r} is not one of the choices", hint=f"use one of {', '.join(choices)}")
        return value

    return normal


def _arity(parameters: Sequence[inspect.Parameter]) -> int | None:
    if any(p.kind is p.VAR_POSITIONAL for p in parameters):
        return None
    return sum(p.kind is not p.KEYWORD_ONLY for p in parameters)


def _spelled(parameters: Sequence[inspect.Parameter]) -> str:
    """Spell the signature for people: operands, then attributes with their defaults."""
    spelled: list[str] = []
    for p in parameters:
        if p.kind is p.VAR_POSITIONAL:
            spelled.append(f"*{p.name}")
            continue
        if p.kind is p.KEYWORD_ONLY and not any(part.startswith("*") for part in spelled):
            spelled.append("*")
        spelled.append(p.name if p.default is p.empty else f"{p.name}={p.default!r}")
    return ", ".join(spelled)


_OPERANDS: Any = (Value, complex, float, int, Hole, np.number)


def as_values(operands: tuple[Operand, ...]) -> tuple[Value, ...]:
    """Operands as values. A number takes the dtype of the last tensor operand."""
    for operand in operands:
        if operand.__class__ is not Value:
            break
    else:
        return operands  # type: ignore[return-value]
    partner = [o for o in operands if isinstance(o, Value)]
    if not partner:
        raise TypeRuleError("an op of numbers alone", hint="make one of them a constant: constant(1.0, f32)")
    for operand in operands:
        if not isinstance(operand, _OPERANDS):
            raise TypeRuleError(
                f"a {operand.__class__.__name__} where a tensor is wanted",
                hint="pass a value or a number; constant(array) makes a value of an array",
            )
    type = partner[-1].known_type
    dtype = type.dtype if isinstance(type, TensorType) else None
    return tuple([o if isinstance(o, Value) else leaf.scalar(o, dtype) for o in operands])


def primitive(
    type_rule: TypeRule,
    *,
    flops: Flops = one_per_element,
    cost_kind: CostKind | str = MAP,
    commutative: bool = False,
    elementwise: bool = False,
    view: bool = False,
    branches: bool = False,
    pull: Gradient | None = None,
    name: str = "",
) -> Callable[[Callable[..., Any]], Primitive]:
    """Declare a primitive by its NumPy meaning."""

    def declare(meaning: Callable[..., Any]) -> Primitive:
        return Primitive(
            name or meaning.__name__.rstrip("_"),
            meaning,
            type_rule,
            flops=flops,
            cost_kind=cost_kind,
            commutative=commutative,
            elementwise=elementwise,
            view=view,
            branches=branches,
            pull=pull,
        )

    return declare


def family(namespace: Mapping[str, Any]) -> tuple[Primitive, ...]:
    """Return the primitives that a module defines, in the order of its lines."""
    return tuple(dict.fromkeys(v for v in namespace.values() if isinstance(v, Primitive)))


__all__ = ["Array", "Axes", "Axis", "Ints", "Operand", "Primitive", "SizeAttr", "Sizes", "family", "primitive"]
