"""The reverse walk: from the gradients of some values to those of the values that they are computed from.

Interning shares the values of the forward pass with the backward pass; there is no tape. A value without a rule does
not end the walk: all of them are listed in one error.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import lru_cache
from typing import NamedTuple, cast

from dovetail import ops
from dovetail.errors import GradientError
from dovetail.grad.terms import added, masked, moves_only
from dovetail.ir import leaf, origin
from dovetail.ir.graph import Subgraph
from dovetail.ir.type import TensorType, Type, tensors
from dovetail.ir.value import Value
from dovetail.ir.walk import walk
from dovetail.ops import adjoint
from dovetail.ops.gradient import Constant, Nested, NoRuleError, Parts, Pull, Refused
from dovetail.ops.primitive import Primitive

At = Callable[[Value], AbstractContextManager[None]]
"""Entered while the gradient of a value is made: what is made inside belongs to the place of that value."""


class NoRule(NamedTuple):
    """A value that stops a gradient, and why."""

    value: Value
    refused: Refused


def has_gradient(type: Type) -> bool:
    """Return whether any result is a float: integers, bools and bits have no gradient."""
    return any(t.dtype.is_float for t in tensors(type))


def _anywhere(value: Value) -> AbstractContextManager[None]:
    return nullcontext()


def _nowhere(value: Value) -> str:
    return ""


def pull_back(
    seeds: Mapping[Value, Value],
    wrt: Collection[Value],
    *,
    until: Collection[Value] = (),
    at: At = _anywhere,
    where: Callable[[Value], str] = _nowhere,
    spelled: bool = False,
) -> dict[Value, Value]:
    """Return the gradients of `wrt` from those of some values; a value that the seeds do not reach is left out.

    The walk stops at `until`. With `spelled`, declared ops are walked through by their bodies. `where` gives the place
    of a value, for messages.
    """
    walk = _Walk(wrt, at, spelled)
    walk.run(seeds, until)
    if walk.refused:
        raise _refusal(walk.refused, where)
    return {v: walk.done[v] for v in wrt if v in walk.done}


def _refusal(refused: Sequence[NoRule], where: Callable[[Value], str]) -> GradientError:
    """Return one error for all values without a rule, each with its place."""
    lines: list[str] = []
    for value, why in dict(refused).items():
        place = where(value)
        lines.append(f"  {value!r}{f' at {place}' if place else ''}: {why.reason}; {why.hint}")
    many = "a value has" if len(lines) == 1 else f"{len(lines)} values have"
    return GradientError("\n".join([f"{many} no gradient", *lines]), hint="or choose `wrt` so that none passes there")


class _Walk:
    def __init__(self, wrt: Collection[Value], at: At, spelled: bool) -> None:
        self.wrt = frozenset(wrt)
        self.at = at
        self.spelled = spelled
        self.alive: set[Value] = set()
        """Values that a change of `wrt` changes smoothly."""
        self.terms: dict[Value, list[Value]] = {}
        self.items: dict[Value, dict[int, list[Value]]] = {}
        """The same for values of several results, by result."""
        self.done: dict[Value, Value] = {}
        self.refused: list[NoRule] = []

    def run(self, seeds: Mapping[Value, Value], until: Collection[Value]) -> None:
        order = walk(seeds, until=frozenset(until))
        self._find_alive(order, frozenset(until))
        for value, g in seeds.items():
            self.terms.setdefault(value, []).append(g)
        for value in reversed(order):
            if value not in self.alive:
                continue
            if value in self.items or value in self.terms:
                with self.at(value):
                    self._visit(value, value in until)

    def _find_alive(self, order: Iterable[Value], until: Collection[Value]) -> None:
        alive = self.alive
        for value in order:
            if value in self.wrt:
                alive.add(value)
            elif value in until or alive.isdisjoint(value.operands) or not _passes(value):
                continue
            else:
                alive.add(value)

    def _visit(self, value: Value, is_last: bool) -> None:
        g: Value | tuple[Value | None, ...]
        if isinstance(value.type, TensorType):
            g = self.done[value] = added(self.terms.pop(value))
            if is_last or not value.operands:
                return
            if value.op is leaf.ITEM:
                parts = self.items.setdefault(value.operands[0], {})
                parts.setdefault(value.attrs["index"], []).append(g)
                return
        else:
            listed = self.items.pop(value)
            g = tuple([added(listed[i]) if i in listed else None for i in range(len(value.type.items))])
        for operand, part in zip(value.operands, self._parts(value, g), strict=True):
            if part is not None and operand in self.alive and isinstance(operand.type, TensorType):
                assert part.type == operand.type, f"the gradient of {value.op}: {part.type} for {operand.type}"
                self.terms.setdefault(operand, []).append(part)

    def _parts(self, value: Value, g: Value | tuple[Value | None, ...]) -> Parts:
        try:
            return self._pulled(value, g)
        except NoRuleError as error:
            return self._refuse(value, error.refused)

    def _refuse(self, value: Value, why: Refused) -> Parts:
        self.refused.append(NoRule(value, why))
        # Zeros keep the walk going, so that one error lists all such values.
        return tuple([adjoint.zeros_like(v) if v in self.alive else None for v in value.operands])

    def _pulled(self, value: Value, g: Value | tuple[Value | None, ...]) -> Parts:
        op = value.op
        if op is leaf.PACK:
            assert isinstance(g, tuple)
            return g
        alive = tuple([i for i, v in enumerate(value.operands) if v in self.alive])
        if any(not has_gradient(value.operands[i].type) for i in alive):
            raise NoRuleError("gradients of complex numbers are not there", "compute with real and imaginary parts")
        if isinstance(op, Primitive):
            rule = op.pull
            if isinstance(rule, Refused):
                raise NoRuleError(rule.reason, rule.hint)
            if isinstance(rule, Nested):
                return rule.pull(pull_body, alive, g, value, *value.operands, **value.attrs)
            assert callable(rule), f"{op.name} passes no gradient"
            return rule(g, value, *value.operands, **value.attrs) if isinstance(g, tuple) else _by_rule(rule, value, g)
        if not self.spelled:
            parts = op.pulled(value, g, alive)
            if parts is not None:
                return _rows_kept(value, g, parts)
        return self._by_body(value, g)

    def _by_body(self, value: Value, g: Value | tuple[Value | None, ...]) -> Parts:
        """Return the gradient of a declared value, by walking through its body on its own operands."""
        operands = tuple(dict.fromkeys(value.operands))
        body = value.op.expansion(value.operands, value.attrs)
        if body is None:
            raise NoRuleError(f"{value.op.name} has neither a rule nor a body", "declare it with a body")
        results = body.operands if body.op is leaf.PACK else (body,)
        inner = _Walk([v for v in operands if v in self.alive], self.at, self.spelled)
        inner.run(seeded(results, g if isinstance(g, tuple) else (g,)), operands)
        self.refused += inner.refused
        first = {v: i for i, v in reversed(list(enumerate(value.operands)))}
        return tuple([inner.done.get(v) if first[v] == i else None for i, v in enumerate(value.operands)])


def _by_rule(rule: Pull, value: Value, g: Value) -> Parts:
    """Return the parts of one primitive. The mask of g stays outermost: a slope that is not finite meets no 0."""
    operands, attrs = value.operands, value.attrs
    if value.op.elementwise:
        mask = masked(g)
        parts = rule(g if mask is None else mask.inner, value, *operands, **attrs)
        gradients: list[Value | None] = []
        for operand, part in zip(operands, parts, strict=True):
            if part is None or not operand.dtype.is_float:
                gradients.append(None)
                continue
            kept = part if mask is None else mask.around(part)
            gradients.append(adjoint.unbroadcast(kept, operand.shape))
        return tuple(gradients)
    mask = masked(g)
    if mask is not None and value.op is ops.matmul and mask.is_by_row(operands[0]):
        # Rows without a gradient take no part, also where the product has read NaN in them.
        (left, _), (_, right) = (
            rule(mask.inner, value, *operands),
            rule(g, value, mask.around(operands[0]), operands[1]),
        )
        assert left is not None
        return mask.around(left), right
    if mask is None or not moves_only(value):
        return rule(g, value, *operands, **attrs)
    condition = adjoint.broadcast(mask.condition, g.shape)
    (moved,), (inner,) = (rule(v, value, *operands, **attrs) for v in (condition, mask.inner))
    assert moved is not None and inner is not None
    return (mask._replace(condition=moved).around(inner),)


def _rows_kept(value: Value, g: Value | tuple[Value | None, ...], parts: Parts) -> Parts:
    """Return the parts of an op on rows, under the mask of g where that drops rows: a row of NaN stays 0."""
    mask = None if isinstance(g, tuple) else masked(g)
    if mask is None or not mask.is_by_row(value) or value.attrs.get("axis", -1) != -1:
        return parts
    return tuple([p if p is None or p.shape != mask.inner.shape else mask.around(p) for p in parts])


def _passes(value: Value) -> bool:
    """Return whether a change of the operands changes the value: a float whose op is not piecewise constant."""
    if value.op is leaf.ITEM:
        return value.tensor.dtype.is_float
    op = value.op
    if isinstance(op, Primitive) and isinstance(op.pull, Constant):
        return False
    return has_gradient(value.type) or any(t.dtype.kind == "complex" for t in tensors(value.type))


def seeded(results: Sequence[Value], gs: Sequence[Value | None]) -> dict[Value, Value]:
    """Return the gradients of the results of a body; one that is there twice has the sum of both."""
    terms_of: dict[Value, list[Value]] = {}
    for result, g in zip(results, gs, strict=True):
        if g is not None:
            terms_of.setdefault(result, []).append(g)
    return {v: added(terms) for v, terms in terms_of.items()}


@lru_cache(maxsize=1024)
def _pulled_body(body: Subgraph, results: tuple[int, ...], indices: tuple[int, ...], spelled: bool) -> Subgraph:
    with origin.unrecorded():
        arguments = [leaf.argument(i, t) for i, t in enumerate(body.arguments)]
        chosen = [cast(TensorType, body.results[i].type) for i in results]
        gs = [leaf.argument(len(arguments) + i, t) for i, t in enumerate(chosen)]
        seeds = seeded([body.results[i] for i in results], gs)
        gradients = pull_back(seeds, [arguments[i] for i in indices], until=arguments, spelled=spelled)
        results_ = tuple([gradients.get(arguments[i], adjoint.zeros_like(arguments[i])) for i in indices])
    return Subgraph((*body.arguments, *chosen), results_)


def pull_body(body: Subgraph, results: Sequence[int], indices: Sequence[int], *, spelled: bool = False) -> Subgraph:
    """Return the pull of a sub-graph: from its arguments and the gradients of `results`, the gradients of `indices`."""
    return _pulled_body(body, tuple(results), tuple(indices), spelled)


def forget() -> None:
    """Drop the pulls of sub-graphs. See `dovetail.testing.forget`."""
    _pulled_body.cache_clear()


__all__ = ["At", "NoRule", "forget", "has_gradient", "pull_back", "pull_body", "seeded"]
