"""Values as traced JAX arrays: operands first, bodies as JAX's own control flow."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np

from dovetail.declare.fused import FusedOp
from dovetail.ir import leaf
from dovetail.ir.graph import Subgraph
from dovetail.ir.type import tensors
from dovetail.ir.value import Value
from dovetail.ir.walk import walk
from dovetail.ops.control import MOST_TRIPS
from dovetail.ops.primitive import Primitive
from dovetail.targets.xla.claims import HOST
from dovetail.targets.xla.meanings.table import FLAGS, MEANINGS
from dovetail.targets.xla.package import jax, jnp, lax

COMPOSITES = "dovetail"
"""The namespace of fused ops in StableHLO."""
Where = Callable[[Value], str]
"""The place of a value in the user's model; empty where none is known."""


def _nowhere(value: Value) -> str:
    return ""


class Tracer:
    """Computes values, and collects flags that say whether the meaning of one of them would have raised."""

    def __init__(
        self,
        where: Where = _nowhere,
        *,
        names: Mapping[Value, str] | None = None,
        inline: bool = False,
        composites: bool = False,
    ) -> None:
        self.where = where
        self.names = names or {}
        """The named scope of each value: reports map XLA's kernels to values by it."""
        self.composites = composites
        """Whether fused ops stay visible by their names; then the flags of their bodies are lost."""
        self.inline = inline
        """Whether functions of JAX are traced in place: Shardy does not look into calls."""
        self.flags: list[Any] = []

    @property
    def raised(self) -> list[Any]:
        """Flags, one for each shape: a sum over all of them would be a collective."""
        by_shape: dict[tuple[int, ...], Any] = {}
        for flag in self.flags:
            known = by_shape.get(flag.shape)
            by_shape[flag.shape] = flag if known is None else known | flag
        return list(by_shape.values())

    @property
    def flag(self) -> Any:
        """Whether any meaning would have raised."""
        return jnp.any(jnp.stack([jnp.any(f) for f in self.flags])) if self.flags else jnp.zeros((), bool)

    def values(self, outputs: Sequence[Value], leaves: Mapping[Value, Any]) -> list[Any]:
        """The arrays of values, where these are known."""
        results = dict(leaves)
        with self._calls(not self.inline):
            for value in walk(outputs, until=leaves):
                if value not in results:
                    place = (self.where(value) or "program").replace(", ", "+").replace("/", ".")
                    with jax.named_scope(place), jax.named_scope(value.op.name), self._named(value):
                        results[value] = self._computed(value, [results[v] for v in value.operands])
        return [results[v] for v in outputs]

    def _named(self, value: Value) -> AbstractContextManager[Any]:
        return jax.named_scope(self.names[value]) if value in self.names else nullcontext()

    def _calls(self, kept: bool) -> AbstractContextManager[Any]:
        """While it is entered, functions of JAX are calls or are traced in place."""
        return jax.disable_jit(not kept) if self.inline else nullcontext()

    def _computed(self, value: Value, operands: list[Any]) -> Any:
        op, attrs = value.op, value.attrs
        if op is leaf.CONST:
            return jnp.asarray(attrs["value"].array)
        if op is leaf.ITEM:
            return operands[0][int(attrs["index"])]
        if op is leaf.PACK:
            return tuple(operands)
        if op.name in CONTROL:
            with self._calls(True):  # a loop that is no loop would have all its trips
                return CONTROL[op.name](self, operands, **attrs)
        if isinstance(op, FusedOp):
            return self._fused(op, value, operands)
        if op.name in FLAGS:
            self.flags.append(FLAGS[op.name](*operands, **attrs))
        if op.name == "refusal":
            self.flags.append(jnp.ones((), bool))
            return jnp.zeros(attrs["shape"], attrs["dtype"].numpy)
        if op.name in MEANINGS:
            return MEANINGS[op.name](*operands, **attrs)
        assert isinstance(op, Primitive) and op.name in HOST, f"{op.name} has no meaning in JAX"
        return _on_host(op, value, operands)

    def _fused(self, op: FusedOp[...], value: Value, operands: list[Any]) -> Any:
        """A fused op as its body, or as a composite whose decomposition is its body."""
        spelled = op.traced(tuple(v.type for v in value.operands), value.attrs)[2]

        def decomposition(*arrays: Any, **attrs: Any) -> tuple[Any, ...]:
            return tuple(self.body(spelled, arrays)[0])

        if self.composites:
            written = {name: a for name, a in value.attrs.items() if a is not None}
            results = lax.composite(decomposition, f"{COMPOSITES}.{op.name}")(*operands, **written)
        else:
            results, flag = self.body(spelled, operands)
            self.flags.append(flag)
        return tuple(results) if len(tensors(value.type)) > 1 else results[0]

    def body(self, graph: Subgraph, operands: Sequence[Any]) -> tuple[list[Any], Any]:
        """The results of a body, and its flag."""
        inner = Tracer(inline=self.inline, composites=self.composites)
        arguments = [v for v in walk(graph.results) if v.op is leaf.ARGUMENT]
        results = inner.values(graph.results, {v: operands[int(v.attrs["index"])] for v in arguments})
        return results, inner.flag

    def if_(self, operands: list[Any], *, then: Subgraph, otherwise: Subgraph, **_: Any) -> tuple[Any, ...]:
        predicate, *captured = operands

        def branch(body: Subgraph) -> Callable[..., Any]:
            return lambda *arrays: self.body(body, arrays)

        results, flag = lax.cond(predicate, branch(then), branch(otherwise), *captured)
        self.flags.append(flag)
        return tuple(results)

    def while_(
        self,
        operands: list[Any],
        *,
        condition: Subgraph,
        body: Subgraph,
        carries: int,
        limit: int | None,
        **_: Any,
    ) -> tuple[Any, ...]:
        captures = operands[carries:]
        most = MOST_TRIPS if limit is None else min(limit, MOST_TRIPS)

        def test(carried: Sequence[Any]) -> tuple[Any, Any]:
            (holds,), flag = self.body(condition, [*carried, *captures])
            return holds, flag

        def goes_on(state: Any) -> Any:
            trips, holds, _, _ = state
            return holds & (trips < most)

        def trip(state: Any) -> Any:
            trips, _, flag, carried = state
            results, raised = self.body(body, [*carried, *captures])
            holds, again = test(results)
            return trips + 1, holds, flag | raised | again, results

        holds, flag = test(operands[:carries])
        start = (jnp.zeros((), jnp.int64), holds, flag, operands[:carries])
        trips, holds, flag, carried = lax.while_loop(goes_on, trip, start)
        self.flags.append(flag | (holds & (trips >= MOST_TRIPS)))
        return (*carried, holds)

    def scan(
        self,
        operands: list[Any],
        *,
        body: Subgraph,
        carries: int,
        scanned: int,
        length: int | None,
        reverse: bool,
    ) -> tuple[Any, ...]:
        captures = operands[carries + scanned :]

        def trip(state: Any, slices: Any) -> Any:
            flag, carried = state
            results, raised = self.body(body, [*carried, *slices, *captures])
            return (flag | raised, results[:carries]), results[carries:]

        start = (jnp.zeros((), bool), operands[:carries])
        over = operands[carries : carries + scanned]
        (flag, carried), outputs = lax.scan(trip, start, over, length=length, reverse=reverse)
        self.flags.append(flag)
        return (*carried, *outputs)


CONTROL: dict[str, Callable[..., Any]] = {"if": Tracer.if_, "while": Tracer.while_, "scan": Tracer.scan}


def _on_host(op: Primitive, value: Value, operands: list[Any]) -> Any:
    """The NumPy meaning, which XLA calls back for."""
    types = tensors(value.type)
    shapes = tuple(jax.ShapeDtypeStruct(t.shape, t.dtype.numpy) for t in types)

    def compute(*arrays: Any) -> Any:
        results = op.compute(*map(np.asarray, arrays), **value.attrs)
        return results if isinstance(results, tuple) else (results,)

    results = jax.pure_callback(compute, shapes, *operands)
    return tuple(results) if len(types) > 1 else results[0]


__all__ = ["COMPOSITES", "CONTROL", "Tracer", "Where"]
