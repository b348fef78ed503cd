"""Branches and loops on the host: where a body is not compiled whole, or finds sizes while it runs.

What they decide is decided by their meaning, and their bodies are compiled plans of their own.
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
from dovetail.targets.cpu.claims import CLAIMS
from dovetail.targets.cpu.threads.control_text import ENDLESS
from dovetail.targets.runtime.control.plan import body_graph
from dovetail.targets.runtime.memory import Memory


class Runner(Protocol):
    """A compiled body."""

    def run(self, inputs: Mapping[str, Array], sizes: Mapping[str, int] | None = None) -> dict[str, Array]: ...


class Compiler(Protocol):
    """What makes one of a plan."""

    def __call__(self, plan: Plan) -> Any: ...


class Body:
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


class Bodies:
    """The bodies of a plan, each compiled when it is first run."""

    def __init__(self, compile: Callable[[Plan], Any]) -> None:
        self._compile = compile
        self._runners: dict[Subgraph, Runner] = {}

    def run(self, step: Step, memory: Memory, said: int = 0) -> bool:
        """Run a step that branches or loops, of which compiled code said this; False where it is another."""
        op = step.value.op
        if op not in CONTROL or not isinstance(op, Primitive):
            return False
        if said == ENDLESS:
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
            return Body(attr, self._runner(attr), dict(memory.sizes))
        if isinstance(attr, Dim):
            known = symbols(attr) <= memory.sizes.keys()
            return evaluate(attr, memory.sizes) if known or not fresh else attr
        return attr

    def _runner(self, body: Subgraph) -> Runner:
        if body not in self._runners:
            self._runners[body] = self._compile(make_plan(body_graph(body), target=CLAIMS)).bind({})
        return self._runners[body]
