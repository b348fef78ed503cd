"""What traps 52 to 55 are defended by, taken away."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from dovetail.ir.graph import Graph, Uses
from dovetail.ir.value import Value
from dovetail.report.kernels import KernelMap
from dovetail.report.report import Report
from dovetail.runtime.program import Program
from tests.traps import test_cost as cost
from tests.traps.removal import Defence, constantly, replaced, wrapped


def count_by_scanning(uses: Uses, value: Value) -> int:
    """Every value is looked at to see whether it reads this one."""
    read = sum(reader.operands.count(value) for reader in uses.readers)
    return read + uses.as_output.get(value, 0)


def search_all(kernel_of: Callable[[KernelMap, Value], Value | None]) -> Callable[[KernelMap, Value], Value | None]:
    """Every kernel is looked at to find the one of a value."""

    def found(kernels: KernelMap, value: Value) -> Value | None:
        first = next((k for k in kernels.kernels if k.op is value.op and k is value), None)
        return first if first is not None else kernel_of(kernels, value)

    return found


def keep_what_was_bound(bind: Callable[..., Program]) -> Callable[..., Program]:
    """What the weights were made into when they were bound first is kept for good."""

    def bound(program: Program, params: Mapping[str, Any]) -> Program:
        known = vars(program)["_binding"].runner
        bind(program, params)
        vars(program)["_binding"].runner = known or vars(program)["_binding"].runner
        return program

    return bound


def copied(build: Callable[..., Report]) -> Callable[..., Report]:
    """The graph is cloned value by value before it is reported."""

    def built(lowered: Any, *others: Any) -> Report:
        graph: Graph = lowered.graph
        clones = [Value(v.op, v.operands, v.attrs, v.known_type, v.constraints) for v in graph.values]
        assert len(clones) == graph.count()
        return build(lowered, *others)

    return built


def recursive_walk(outputs: Iterable[Value], until: Any = ()) -> list[Value]:
    """Operands first, one call inside the other."""
    order: dict[Value, None] = {}

    def visit(value: Value) -> None:
        if value not in order:
            for operand in value.operands if value not in until else ():
                visit(operand)
            order[value] = None

    for value in outputs:
        visit(value)
    return list(order)


DEFENCES = (
    Defence(
        cost.test_trap_52_work_grows_with_the_graph_and_no_faster,
        "uses are counted by scanning",
        replaced("dovetail.ir.graph.Uses.count", count_by_scanning),
    ),
    Defence(
        cost.test_trap_52_work_grows_with_the_graph_and_no_faster,
        "a report searches all kernels",
        wrapped("dovetail.report.kernels.KernelMap.kernel_of", search_all),
    ),
    Defence(
        cost.test_trap_53_weights_are_joined_once_for_each_binding,
        "nothing is done at bind time",
        replaced("dovetail.plan.plan.bind_values", constantly(set[Value]())),
    ),
    Defence(
        cost.test_trap_53_weights_are_joined_once_for_each_binding,
        "joined weights are kept for good",
        wrapped("dovetail.runtime.program.Program.bind", keep_what_was_bound),
    ),
    Defence(
        cost.test_trap_54_a_report_copies_no_graph,
        "a report clones the graph",
        wrapped("dovetail.report.build.build_report", copied),
    ),
    Defence(
        cost.test_trap_55_depth_is_no_recursion,
        "a walk calls itself",
        replaced("dovetail.ir.graph.walk", recursive_walk),
    ),
)
