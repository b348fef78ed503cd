"""A fused op is declared once: one function is its meaning, its pattern, its expansion and its documentation."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, Generic, Literal, ParamSpec, Protocol, TypeAlias, cast

from dovetail.dataclass import dataclass
from dovetail.declare.guard import Guard
from dovetail.declare.remedy import Change, Remedy
from dovetail.declare.signature import Refusal, Signature, UnwrittenError
from dovetail.declare.trace import shared_parts
from dovetail.errors import DovetailError, TraceError, TypeRuleError
from dovetail.ir import leaf
from dovetail.ir.fact import Constraint, Facts
from dovetail.ir.graph import Subgraph
from dovetail.ir.origin import unrecorded
from dovetail.ir.spell import name as word
from dovetail.ir.type import TensorType, Type
from dovetail.ir.value import Op, Value, attrs_key, make
from dovetail.ir.walk import walk
from dovetail.match.outline import Outline, outline_of
from dovetail.match.undo import RESPELLED
from dovetail.ops.reduction import reduce_max, reduce_mean, reduce_min, reduce_sum

P = ParamSpec("P")
Result: TypeAlias = Value | tuple[Value, ...]
Stage = Literal["recognise", "fuse"]


@dataclass(frozen=True)
class Variant:
    """One straight-line trace of a body or spelling, for one choice of what the signature leaves open."""

    choice: Mapping[str, Any]
    results: tuple[Value, ...]
    spelling: str
    size: int
    """How many ops the pattern has."""
    needs: frozenset[Op] = frozenset()
    """The ops of the pattern that no other op can spell: it is nowhere in a graph without them."""
    numbers: frozenset[str] = frozenset()
    """The numbers that could be left out and are caught here."""

    @cached_property
    def pattern(self) -> Value:
        return self.results[0]

    @cached_property
    def outline(self) -> Outline:
        """The ops that must stand at fixed places under the root: a glance at them refuses most values."""
        return outline_of(self.pattern)

    @cached_property
    def fixed(self) -> Mapping[str, Any]:
        """The options of this trace that nothing has to be caught for."""
        return {k: v for k, v in self.choice.items() if not isinstance(v, Value | leaf.Hole)}

    @cached_property
    def label(self) -> str:
        """The choices in words: `b, scale, act=gelu`."""
        words: list[str] = []
        for name, value in self.choice.items():
            if isinstance(value, Value) or name in self.numbers:
                words.append(name)
            elif value is not None and not isinstance(value, leaf.Hole):
                words.append(f"{name}={word(value) if isinstance(value, str) else value}")
        return ", ".join([*words, *([self.spelling] if self.spelling else [])])


@dataclass(frozen=True, slots=True)
class Call:
    """The operands and attributes of one fused value, by the names of its declaration."""

    names: Mapping[str, Any]

    def __getattr__(self, name: str) -> Any:
        try:
            return self.names[name]
        except KeyError:
            raise AttributeError(name) from None


class Backward(Protocol):
    """The backward op of a declared op, as the op itself sees it; `declare.backward` makes it."""

    name: str

    def pulled_from(
        self, value: Value, g: Value | tuple[Value | None, ...], wanted: tuple[int, ...]
    ) -> tuple[Value | None, ...] | None:
        """The gradients of the operands `wanted` of a value of the op; None where only its body can give them."""
        ...

    def forget(self) -> None: ...


class FusedOp(Op, Generic[P]):
    """A declared op. Calling it builds the fused value; `body` spells it out."""

    back: Backward | None = None
    """Its backward op, whose body is the pull of the body; a backward op has none."""

    def __init__(
        self,
        body: Callable[P, Result],
        *,
        shapes: str,
        stage: Stage,
        backward: Sequence[str] = (),
    ) -> None:
        self.name = body.__name__
        # Any: most bodies give one value, those of several results a tuple, and callers know which.
        self.body: Callable[P, Any] = body
        self.doc = inspect.getdoc(body) or ""
        self.shapes = shapes
        self.stage: Stage = stage
        self.__name__ = self.name
        self.__doc__ = f"{self.name}: {self.doc}"
        self.signature = Signature.of(body)
        self.guards: list[Guard] = []
        self.refusals: list[Refusal] = []
        self.spellings: list[Callable[P, Result]] = []
        self.cost_of: Callable[..., Any] | None = None
        self.form: Callable[..., tuple[Value | None, ...]] | None = None
        """A better form of its gradient than the derived one: one part for each operand."""
        self.backward = tuple(backward)
        """The operands whose gradients one kernel computes together, where it does not go by rows."""
        self._traced: dict[Any, tuple[Type, tuple[Constraint, ...], Subgraph]] = {}

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Value:
        """The fused value itself."""
        bound = self.signature.bind(self.name, args, kwargs)
        given = self._given(bound)
        return make(self, tuple([bound[name] for name in given]), self._stored(bound, given))

    def normal(self, operands: tuple[Value, ...], attrs: Mapping[str, Any]) -> dict[str, Any]:
        """The attributes as a call stores them. Where no operands are named, the first ones are meant."""
        listed = attrs.get("operands", tuple(p.name for p in self.signature.operands[: len(operands)]))
        names = cast(tuple[Any, ...], listed) if isinstance(listed, tuple) else ()
        bound: dict[str, Any] = {}
        if len(names) == len(operands):
            named = {**attrs, **dict(zip(names, operands, strict=True))}
            named.pop("operands", None)
            bound = self.signature.bind(self.name, (), named)
        if not bound or self._given(bound) != names:
            raise TypeRuleError(
                f"{self.name} of {len(operands)} operands named {listed!r}",
                hint=f"it takes, in this order, {', '.join(p.name for p in self.signature.operands)}",
            )
        return self._stored(bound, names)

    def _given(self, bound: Mapping[str, Any]) -> tuple[str, ...]:
        return tuple([name for name in self.signature.operand_names if bound[name] is not None])

    def _stored(self, bound: Mapping[str, Any], given: tuple[str, ...]) -> dict[str, Any]:
        attrs: dict[str, Any] = {p.name: bound[p.name] for p in self.signature.attributes}
        if self.signature.leaves_out:
            attrs["operands"] = given
        return attrs

    def requires(self, *, reason: str, hint: str = "") -> Callable[[Callable[..., bool]], Callable[..., bool]]:
        """Declare a fact that must hold; its function name is the code in reports.

        `hint` says what would make it hold. A report gives it where the guard's remedy keeps the numbers and gains.
        """

        def declare(holds: Callable[..., bool]) -> Callable[..., bool]:
            self.guards.append(Guard.of(holds, reason, hint))
            return holds

        return declare

    def remedy(
        self, guard: Callable[..., bool]
    ) -> Callable[[Callable[..., Change | None]], Callable[..., Change | None]]:
        """Declare what a model would have to hold instead, where this guard refuses; the docstring says it in words."""
        place = next((i for i, g in enumerate(self.guards) if g.holds is guard), None)
        if place is None:
            raise TraceError(f"{guard.__name__} is no guard of {self.name}", hint="declare it with requires first")

        def declare(change: Callable[..., Change | None]) -> Callable[..., Change | None]:
            self.guards[place] = replace(self.guards[place], remedy=Remedy.of(change))
            return change

        return declare

    def spelling(self, body: Callable[P, Result]) -> Callable[P, Result]:
        """Another way that exporters write the same thing; the laws prove it equal."""
        self.spellings.append(body)
        return body

    def refuses(self, check: Callable[..., None]) -> Callable[..., None]:
        """Declare options that do not go together: a function of some parameters that raises `UnwrittenError`.

        The body calls it. Tracing does too, as soon as its parameters are chosen: nothing is built of what it refuses.
        """
        refusal = Refusal.of(check)
        for name in set(refusal.asks).difference(self.signature.names):
            raise TraceError(f"{self.name} has no {name!r}", hint=f"name some of {', '.join(self.signature.names)}")
        self.refusals.append(refusal)
        return check

    def cost(self, of: Callable[..., Any]) -> Callable[..., Any]:
        """Declare what it costs where the default (all operands and results once, all flops once) is wrong.

        It asks for types, shapes and numbers: calls that are alike in these cost the same.
        """
        self.cost_of = of
        return of

    def gradient(self, form: Callable[..., Any]) -> Callable[..., Any]:
        """Declare a better form of the gradient: `form(g, y, **arguments)` gives that of each operand, or None.

        A law proves it equal to the derived one.
        """
        self.form = form
        return form

    def pulled(
        self, value: Value, g: Value | tuple[Value | None, ...], indices: tuple[int, ...]
    ) -> tuple[Value | None, ...] | None:
        if self.back is None or not (self.keeps_its_gradient or (self.form is not None and isinstance(g, Value))):
            return None
        return self.back.pulled_from(value, g, indices)

    def of(self, value: Value) -> Call:
        """The operands and attributes of one of this op's values, by name."""
        if value.op is not self:
            raise TypeRuleError(f"{value.op.name} is not {self.name}", hint=f"ask {value.op.name} for its own operands")
        return Call(self.arguments(value.operands, value.attrs))

    def arguments(self, operands: tuple[Value, ...], attrs: Mapping[str, Any]) -> dict[str, Any]:
        """Operands and attributes by the names of the declaration; what was left out is None."""
        given = attrs.get("operands") or tuple(p.name for p in self.signature.operands)
        named: dict[str, Any] = {p.name: None for p in self.signature.operands}
        named.update(zip(given, operands, strict=True))
        named.update({k: v for k, v in attrs.items() if k != "operands"})
        return named

    def expansion(self, operands: tuple[Value, ...], attrs: Mapping[str, Any]) -> Value:
        """The value spelled out one level down."""
        spell: Callable[..., Result] = self.body
        results = spell(**self.arguments(operands, attrs))
        return leaf.pack(results) if isinstance(results, tuple) else results

    def traced(
        self, operands: tuple[Type, ...], attrs: Mapping[str, Any], chosen: Hashable = None
    ) -> tuple[Type, tuple[Constraint, ...], Subgraph]:
        """The body on operands of these types: its type, what it takes for granted, its values.

        `chosen` is the key of the attributes, for those who have it.
        """
        key = (operands, attrs_key(attrs) if chosen is None else chosen)
        found = self._traced.get(key)
        if found is None:
            types = tuple(t for t in operands if isinstance(t, TensorType))
            if len(types) != len(operands):
                raise TypeRuleError(f"{self.name} of a tuple", hint="take one of its results: value[0]")
            with unrecorded():
                given = tuple(leaf.argument(i, t) for i, t in enumerate(types))
                spelled = self.expansion(given, attrs)
            results = spelled.operands if spelled.op is leaf.PACK else (spelled,)
            constraints = tuple(dict.fromkeys(c for v in walk(results) for c in v.constraints))
            found = self._traced[key] = (spelled.type, constraints, Subgraph(types, results))
        return found

    def forget(self) -> None:
        """Drop the traces of the body. See `dovetail.testing.forget`."""
        self._traced.clear()
        if self.back is not None:
            self.back.forget()

    def infer(self, facts: Facts, operands: tuple[Type, ...], attrs: Mapping[str, Any]) -> Type:
        type, constraints, _ = self.traced(operands, attrs)
        facts.recorded.extend(constraints)
        return type

    @cached_property
    def variants(self) -> tuple[Variant, ...]:
        """Every trace of the body and the spellings, the largest first."""
        found: dict[tuple[Value, ...], Variant] = {}
        choices = list(self.signature.choices(self.refusals))
        with unrecorded(), shared_parts():
            for spell in (self.body, *self.spellings):
                for choice in choices:
                    results = self._trace(spell, choice)
                    if results is not None and results not in found:
                        found[results] = self._variant(spell, choice, results)
        return tuple(sorted([v for v in found.values() if v.size], key=lambda v: (-v.size, len(v.results))))

    def _trace(self, spell: Callable[..., Result], choice: Mapping[str, Any]) -> tuple[Value, ...] | None:
        """The results of a spelling for one choice; None where it is not written for it."""
        try:
            results = spell(**choice)
        except UnwrittenError:
            return None
        except DovetailError:
            raise
        except Exception as error:
            raise TraceError(
                f"{self.name}: its body cannot be traced: {error}",
                hint="a body composes ops; it must not branch on shapes, dtypes or caught numbers",
            ) from error
        return results if isinstance(results, tuple) else (results,)

    def _variant(self, spell: Callable[..., Result], choice: Mapping[str, Any], listed: tuple[Value, ...]) -> Variant:
        inside = walk(listed[:1])
        if any(r not in inside and (r.op is not leaf.ITEM or r.operands[0] not in inside) for r in listed[1:]):
            raise TraceError(
                f"{self.name}: a second result is not part of the first",
                hint="return inner values of the first, or items of one",
            )
        size = sum([v.op not in _LEAVES for v in inside])
        spelling = "" if spell is self.body else spell.__name__
        open_ = (p.name for p in self.signature.attributes if p.optional and not p.handed_on)
        numbers = frozenset(name for name in open_ if choice[name] is not None)
        needs = frozenset([v.op for v in inside]).difference(_LEAVES, RESPELLED)
        return Variant(choice, listed, spelling, size, needs, numbers)

    @cached_property
    def patterns(self) -> tuple[Variant, ...]:
        """The variants to look for: to find one op alone is to recognise it, not to fuse."""
        return tuple(v for v in self.variants if v.size > 1 or self.stage == "recognise")

    @cached_property
    def parts(self) -> frozenset[FusedOp[...]]:
        """The declared ops that its body is made of."""
        return frozenset([op for variant in self.variants for op in variant.needs if isinstance(op, FusedOp)])

    @cached_property
    def elementwise(self) -> bool:  # type: ignore[override]  # derived here, stored in primitives
        return all(v.op in _LEAVES or v.op.elementwise for v in self._spelled)

    @cached_property
    def keeps_its_gradient(self) -> bool:  # type: ignore[override]  # derived here, False elsewhere
        """Whether its backward op is one kernel: declared so, or one pass over rows."""
        return bool(self.backward) or self.differentiates_by_row

    @cached_property
    def differentiates_by_row(self) -> bool:  # type: ignore[override]  # derived here, False elsewhere
        """Whether its backward op is one pass over rows: the body has reductions and elementwise steps alone."""
        with unrecorded():
            # One trace after the other: the first product ends it.
            traces = (self._trace(self.body, choice) for choice in self.signature.choices(self.refusals))
            return all(_is_by_row(results) for results in traces if results is not None) and not self.elementwise

    @property
    def _spelled(self) -> list[Value]:
        """All values of its traces, each once."""
        return walk([result for variant in self.variants for result in variant.results])

    def __repr__(self) -> str:
        return f"<fused op {self.name}>"


_LEAVES = (leaf.HOLE, leaf.NUMBER, leaf.CONST)


def _is_by_row(results: Sequence[Value]) -> bool:
    inside = [v.op for v in walk(results) if v.op not in _LEAVES and v.op is not leaf.ITEM]
    return all(op.elementwise or op in _FOLDS or op.differentiates_by_row for op in inside)


_FOLDS = (reduce_max, reduce_mean, reduce_min, reduce_sum)


__all__ = ["Backward", "Call", "FusedOp", "Result", "Stage", "UnwrittenError", "Variant"]
