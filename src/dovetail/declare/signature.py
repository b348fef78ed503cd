"""What the signature of a declared body says: operands, options, numbers."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from types import NoneType
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

from dovetail.dataclass import dataclass
from dovetail.errors import TraceError, TypeRuleError
from dovetail.ir import leaf
from dovetail.ir.dim import Dim
from dovetail.ir.leaf import Hole
from dovetail.ir.value import Value

HANDED_ON = "handed on"
"""Marks a number or option that a body only hands on to another declared op: `Annotated[float | None, HANDED_ON]`.

It is caught there whatever it is, None included, and takes one trace. The body must not look at it.
"""


class UnwrittenError(TypeRuleError):
    """Options that do not go together in a body, or that a spelling does not write in a way of its own."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """Options that do not go together: a function of some of the parameters, which raises."""

    asks: tuple[str, ...]
    check: Callable[..., None]

    @staticmethod
    def of(check: Callable[..., None]) -> Refusal:
        return Refusal(tuple(inspect.signature(check).parameters), check)

    def admits(self, choice: Mapping[str, Any]) -> bool:
        try:
            self.check(**{name: choice[name] for name in self.asks})
        except UnwrittenError:
            return False
        return True


@dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter of a body: a tensor, an option with listed choices, or numbers that are caught."""

    name: str
    kind: Literal["operand", "option", "float", "int", "ints"]
    optional: bool
    choices: tuple[Any, ...] = ()
    default: Any = inspect.Parameter.empty
    handed_on: bool = False

    def open_choices(self) -> tuple[Any, ...]:
        """What tracing has to try for this parameter, one trace each."""
        if self.handed_on:
            return (Hole(self.name, or_none=self.optional),)
        if self.kind == "option":
            return self.choices
        unknown = leaf.hole(self.name) if self.kind == "operand" else Hole(self.name)
        return (unknown, None) if self.optional else (unknown,)


@dataclass(frozen=True)
class Signature:
    """The parameters of a body, operands first."""

    parameters: tuple[Parameter, ...]

    @staticmethod
    def of(body: Callable[..., Any]) -> Signature:
        hints = get_type_hints(body, include_extras=True)
        listed = inspect.signature(body).parameters.values()
        return Signature(tuple(_parameter(p, hints.get(p.name), body) for p in listed))

    @cached_property
    def names(self) -> tuple[str, ...]:
        return tuple(p.name for p in self.parameters)

    @cached_property
    def operand_names(self) -> tuple[str, ...]:
        return tuple(p.name for p in self.operands)

    @cached_property
    def leaves_out(self) -> bool:
        """Whether an operand may be left out, so that a call has to say which were given."""
        return any(p.optional for p in self.operands)

    @cached_property
    def operands(self) -> tuple[Parameter, ...]:
        return tuple(p for p in self.parameters if p.kind == "operand")

    @cached_property
    def attributes(self) -> tuple[Parameter, ...]:
        return tuple(p for p in self.parameters if p.kind != "operand")

    def choices(self, refusals: Sequence[Refusal] = ()) -> list[dict[str, Any]]:
        """Every combination of options and of operands that may be left out, without those that are refused."""
        open_: list[dict[str, Any]] = [{}]
        chosen: set[str] = set()
        for p in self.parameters:
            chosen.add(p.name)
            open_ = [{**earlier, p.name: choice} for earlier in open_ for choice in p.open_choices()]
            # A refusal that waits for no other parameter prunes here, before the next one multiplies what is left.
            due = [r for r in refusals if p.name in r.asks and chosen.issuperset(r.asks)]
            open_ = [choice for choice in open_ if all([r.admits(choice) for r in due])]
        return open_

    def bind(self, op: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Arguments by name, defaults filled in, each of its kind."""
        bound: dict[str, Any] = dict(zip(self.names, args, strict=False))
        if len(args) > len(self.operands):
            raise TypeRuleError(
                f"{op} of {len(args)} operands", hint=f"it takes {', '.join(p.name for p in self.operands)}"
            )
        for name in kwargs:
            if name in bound or name not in self.names:
                raise TypeRuleError(
                    f"{op} takes no {name!r}" if name not in bound else f"{op} got {name!r} twice",
                    hint=f"it takes {', '.join(self.names)}",
                )
        bound.update(kwargs)
        checked: dict[str, Any] = {}
        for p in self.parameters:
            value = bound.get(p.name, p.default)
            # Most are tensors, which need no more than this look.
            is_tensor = value.__class__ is Value and p.kind == "operand"
            checked[p.name] = value if is_tensor else _checked(op, p, value)
        return checked


def _parameter(parameter: inspect.Parameter, hint: Any, body: Callable[..., Any]) -> Parameter:
    if get_origin(hint) is Annotated:
        plain, *notes = get_args(hint)
        handed_on = HANDED_ON in notes and parameter.kind is parameter.KEYWORD_ONLY
        return replace(_parameter(parameter, plain, body), handed_on=handed_on)
    args = get_args(hint)
    optional = NoneType in args
    inner = next((a for a in args if a is not NoneType), hint) if optional else hint
    keyword = parameter.kind is parameter.KEYWORD_ONLY
    if inner is Value and not keyword:
        return Parameter(parameter.name, "operand", optional, (), None if optional else parameter.default)
    if keyword and get_origin(inner) is Literal:
        return Parameter(parameter.name, "option", False, get_args(inner), parameter.default)
    if keyword and inner in (float, int):
        kind: Literal["float", "int"] = "float" if inner is float else "int"
        return Parameter(parameter.name, kind, optional, (), parameter.default)
    if keyword and get_origin(inner) is tuple and args == (int, ...):
        return Parameter(parameter.name, "ints", False, (), parameter.default)
    raise TraceError(
        f"{body.__name__}: the parameter {parameter.name!r} is annotated {hint}",
        hint="tensors are positional (Value or Value | None); options (Literal), float, int and tuple[int, ...] are "
        "keyword-only",
    )


def _checked(op: str, parameter: Parameter, value: Any) -> Any:
    name = parameter.name
    if value is inspect.Parameter.empty:
        raise TypeRuleError(f"{op} needs {name}", hint=f"pass {name}")
    if value is None and parameter.optional:
        return None
    match parameter.kind:
        case "operand":
            fits = value.__class__ is Value
        case "option":
            fits = isinstance(value, Hole) or any(
                [value is c or (value == c and type(value) is type(c)) for c in parameter.choices]
            )
        case "float":
            fits = isinstance(value, float | int | Hole) and not isinstance(value, bool)
            value = float(value) if fits and isinstance(value, int) else value
        case "int":
            fits = isinstance(value, int | Dim | Hole) and not isinstance(value, bool)
        case "ints":
            fits = isinstance(value, Hole) or _are_sizes(value)
    if not fits:
        kind = "tuple of whole numbers" if parameter.kind == "ints" else parameter.kind
        wanted = f"one of {parameter.choices}" if parameter.choices else f"a {kind}"
        raise TypeRuleError(f"{op} got {name}={value!r}", hint=f"{name} is {wanted}")
    return value


def _are_sizes(value: Any) -> bool:
    return isinstance(value, tuple) and all(
        isinstance(size, int | Dim) and not isinstance(size, bool)
        for size in value  # pyright: ignore[reportUnknownVariableType]
    )
