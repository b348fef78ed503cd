"""Plans run with NumPy inside real memory, so that a wrong plan gives wrong numbers."""

from __future__ import annotations

from collections.abc import Mapping

from dovetail.ir.literal import Array
from dovetail.plan.plan import Plan
from dovetail.targets.runtime.arrays.feeds import actual_leaf
from dovetail.targets.runtime.arrays.memory import Memory


class PlannedGraph:
    """A plan that runs step by step. Arrays are taken as they are: names, dtypes and shapes are checked before."""

    def __init__(self, plan: Plan, *, prove: bool = False) -> None:
        """`prove` lets no wrong plan pass: memory starts as garbage, and results in place are computed twice."""
        self.plan = plan
        self.prove = prove

    def bind(self, params: Mapping[str, Array]) -> BoundGraph:
        """Run the bind phase on these parameters; its results are kept."""
        plan = self.plan
        memory = Memory(plan, self.prove)
        memory.give(plan.graph.parameters, params, bare=True)
        memory.reserve("bound", plan.bound_size)
        memory.reserve("scratch", plan.scratch_size)
        memory.run(plan.phase("bind"))
        memory.release("scratch")
        return BoundGraph(plan, memory, params)


class BoundGraph:
    """A plan with its parameters. Every run has memory of its own, so that several threads may run at once."""

    def __init__(self, plan: Plan, kept: Memory, params: Mapping[str, Array]) -> None:
        self.plan = plan
        self.kept = kept
        self.steps = plan.phase("run")
        self.symbolic = [
            actual_leaf(v, params[v.attrs["name"]]) for v in plan.graph.parameters if not v.tensor.is_static
        ]
        """Parameters whose sizes are checked once inputs bind the symbols."""

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """The outputs by name, in memory that the caller owns. Arrays of donated inputs are overwritten."""
        plan = self.plan
        memory = self.kept.copy()
        memory.give(plan.graph.inputs, inputs)
        memory.solve(self.symbolic)
        for constraint in plan.graph.constraints:
            constraint.bind(memory.sizes)
        memory.reserve("arena", plan.arena_size)
        memory.run(self.steps)
        return memory.results(inputs)
