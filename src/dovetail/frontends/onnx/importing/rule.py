"""A rule turns one node of an ONNX operator into values. Its signature says what it needs.

    @rule("Gather")
    def gather(n: Node, x: Value, indices: Value, *, axis: int = 0) -> Value:
        return ops.gather(x, indices, axis=axis)

Positional parameters are the inputs of the node in their order: `Value` for a tensor, `Value | None` for one that may
be left out, `*xs: Value` for the rest. `Ints`, `Floats` and `Known` are inputs whose contents the rule has to know
when the model is imported, and `Sizes` may hold sizes that are symbols; where older opsets have an attribute of that
name in its place, the attribute is read. Keyword-only parameters are attributes; one whose type is an
`AttributeGroup` takes an attribute for each field. An attribute that no parameter takes is refused, so that
nothing is silently ignored.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Mapping
from functools import cache
from types import NoneType, UnionType
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

from dovetail.dataclass import dataclass
from dovetail.frontends.shared import rule as shared
from dovetail.frontends.shared.rule import Made
from dovetail.frontends.shared.site import AttributeGroup
from dovetail.ir.dim import Size
from dovetail.ir.literal import Array
from dovetail.ir.value import Value

Sizes = Annotated[tuple[Size, ...], "sizes"]
"""The numbers in an integer input, in the order of memory; some may be symbolic sizes."""
Ints = Annotated[tuple[int, ...], "ints"]
"""The numbers in an integer input, in the order of memory."""
Floats = Annotated[tuple[float, ...], "floats"]
"""The numbers in a float input, in the order of memory."""
Known = Annotated[Array, "array"]
"""An input as the array that it is in every run."""


@dataclass(frozen=True, slots=True)
class Parameter:
    """One input of an operator, or all that are left."""

    name: str
    kind: str
    optional: bool
    rest: bool = False


@dataclass(frozen=True, slots=True)
class Attribute:
    """One attribute of an operator: what it is read as, and what it is when a node leaves it out."""

    name: str
    kind: Any
    default: Any
    required: bool


@dataclass(frozen=True, slots=True)
class Rule(shared.Rule):
    """How nodes of one operator become values, from one version of its domain on."""

    domain: str = ""
    since: int = 1
    until: int | None = None

    @property
    def op_type(self) -> str:
        """The operator without its domain."""
        return self.op.removeprefix(f"{self.domain}.")

    @property
    def parameters(self) -> tuple[Parameter, ...]:
        return _signature(self.function)[0]

    @property
    def attributes(self) -> Mapping[str, Attribute]:
        return _signature(self.function)[1]

    def __call__(self, node: Any, *operands: Any, **attributes: Any) -> Made:
        """What the function makes of a node; attributes of a group are handed on in one."""
        for name, group in _signature(self.function)[2].items():
            fields = {f.name: attributes.pop(f.name) for f in dataclasses.fields(group) if f.name in attributes}
            if name not in attributes:
                attributes[name] = group(**fields)
        return self.function(node, *operands, **attributes)


def rule(
    *op_types: str, domain: str = "", since: int = 1, until: int | None = None
) -> Callable[[Callable[..., Made]], tuple[Rule, ...]]:
    """Declare how nodes of some operators are read, for versions from `since` to `until` of their domain."""

    def declare(function: Callable[..., Made]) -> tuple[Rule, ...]:
        return tuple(Rule(operator(domain, t), function, domain, since, until) for t in op_types)

    return declare


def operator(domain: str, op_type: str) -> str:
    """An operator by one name: Gelu, com.microsoft.Gelu."""
    return f"{domain}.{op_type}" if domain else op_type


@cache
def _signature(
    function: Callable[..., Made],
) -> tuple[tuple[Parameter, ...], Mapping[str, Attribute], Mapping[str, type[Any]]]:
    """What a rule needs, read when it is first asked: a model uses few rules, and reading them all takes its time."""
    hints = get_type_hints(function, include_extras=True)
    parameters: list[Parameter] = []
    attributes: dict[str, Attribute] = {}
    groups: dict[str, type[Any]] = {}
    for name, parameter in list(inspect.signature(function).parameters.items())[1:]:
        kind, optional = without_none(hints[name])
        onnx_name = name.rstrip("_")
        if isinstance(kind, type) and issubclass(kind, AttributeGroup):
            groups[name] = kind
            inner = get_type_hints(kind)
            for field in dataclasses.fields(kind):
                attributes[field.name] = Attribute(field.name, without_none(inner[field.name])[0], field.default, False)
        elif parameter.kind is parameter.KEYWORD_ONLY:
            required = parameter.default is parameter.empty
            attributes[onnx_name] = Attribute(name, kind, None if required else parameter.default, required)
        else:
            rest = parameter.kind is parameter.VAR_POSITIONAL
            parameters.append(Parameter(name, _kind(function, name, kind), optional, rest))
    return tuple(parameters), attributes, groups


def without_none(hint: Any) -> tuple[Any, bool]:
    """What a hint says apart from None, and whether it allows None."""
    if get_origin(hint) in (UnionType, Union):
        kinds = [a for a in get_args(hint) if a is not NoneType]
        return (kinds[0] if len(kinds) == 1 else hint), len(kinds) < len(get_args(hint))
    return hint, False


def _kind(function: Callable[..., Made], name: str, hint: Any) -> str:
    if hint is Value:
        return "value"
    for part in get_args(hint)[1:]:
        if isinstance(part, str):
            return part
    raise TypeError(f"{function.__qualname__}: {name} is {hint}; use Value, Sizes, Ints, Floats or Known")
