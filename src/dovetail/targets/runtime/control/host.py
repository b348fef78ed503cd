"""Branches and loops on the host, for bodies that have host steps or find sizes while they run.

The NumPy meaning of the op decides; each body is a compiled plan of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

import numpy as np

from dovetail.ir.dim import Dim, evaluate, symbols
from dovetail.ir.graph import Subgraph
from dovetail.ir.literal import Array
from dovetail.ir.solve import Found
from dovetail.ir.type import TensorType
from dovetail.ops.control import FAMILY as CONTROL
from dovetail.ops.control import MOST_TRIPS, check_trips
from dovetail.ops.primitive import Primitive
from dovetail.plan.plan import Plan, Step, make_plan
from dovetail.targets.runtime.control.plan import body_graph
from dovetail.targets.runtime.control.records import ENDLESS
from dovetail.targets.runtime.memory import Memory


class Runner(Protocol):
    """A compiled body."""

    def run(self, inputs: Mapping[str, Array], sizes: Mapping[str, int] | None = None) -> dict[str, Array]: ...


class Executable(Protocol):
    """A compiled plan without its parameters."""

    def bind(self, params: Mapping[str, Array]) -> Runner: ...


class HostBody:
    """A sub-graph as a function of arrays."""

    def __init__(self, body: Subgraph, runner: Runner, sizes: Mapping[str, int]) -> None:
        self.body = body
        self.runner = runner
        self.sizes = sizes

    @property
    def results(self) -> tuple[TensorType, ...]:
        """The types of the results, with their sizes as numbers."""
        return tuple(TensorType(v.dtype, tuple(evaluate(s, self.sizes) for s in v.shape)) for v in self.body.results)

    def __call__(self, *arguments: Array) -> tuple[Array, ...]:
        found = self.runner.run({f"a{i}": np.asarray(a) for i, a in enumerate(arguments)}, self.sizes)
        return tuple(found[f"r{i}"] for i in range(len(self.body.results)))


class HostControl:
    """The bodies of a plan, each compiled when it is first run."""

    def __init__(self, compile: Callable[[Plan], Executable], outer: Plan) -> None:
        self._compile = compile
        self._outer = outer
        self._runners: dict[Subgraph, Runner] = {}

    def run(self, step: Step, memory: Memory, status: int = 0) -> bool:
        """Run a step that branches or loops, after compiled code set this status; False for other steps."""
        op = step.value.op
        if op not in CONTROL or not isinstance(op, Primitive):
            return False
        if status == ENDLESS:
            check_trips(MOST_TRIPS)
        attrs = {
            name: self._attribute(a, op.kinds[name].name == "fresh", memory) for name, a in step.value.attrs.items()
        }
        results = op.compute(*[memory.view(v) for v in step.operands], **attrs)
        arrays = results if isinstance(results, tuple) else (results,)
        named = list(zip(step.results, arrays, strict=True))
        memory.solve([Found(step.name, v.tensor, a.shape) for v, a in named])
        for value, array in named:
            memory.view(value)[...] = array
        return True

    def _attribute(self, attr: Any, fresh: bool, memory: Memory) -> Any:
        if isinstance(attr, Subgraph):
            return HostBody(attr, self._runner(attr), dict(memory.sizes))
        if isinstance(attr, Dim):
            known = symbols(attr) <= memory.sizes.keys()
            return evaluate(attr, memory.sizes) if known or not fresh else attr
        return attr

    def _runner(self, body: Subgraph) -> Runner:
        if body not in self._runners:
            plan = make_plan(body_graph(body), target=self._outer.target, rules=self._outer.rules)
            self._runners[body] = self._compile(plan).bind({})
        return self._runners[body]
