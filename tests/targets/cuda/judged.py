"""Inputs for the cases, and what they give on the machine in NumPy."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from dovetail import Graph
from dovetail.ir.dtype import DType
from dovetail.ir.literal import Array
from dovetail.kernels.device import GpuDevice
from dovetail.kernels.loops.split_reduce import SplitLimits
from dovetail.plan.plan import Plan, Step, make_plan
from dovetail.targets.cuda.driver.architectures import H200
from dovetail.targets.cuda.runs.run import steps_of
from dovetail.targets.gpu.kernel import GpuKernel
from dovetail.targets.gpu.steps import placed
from dovetail.targets.reference.interpreter import evaluate
from dovetail.targets.runtime.arrays.memory import Memory
from tests.targets.cuda.graphs import Case
from tests.targets.cuda.lockstep import Machine
from tests.tolerances import assert_close


def drawn(dtype: DType, shape: tuple[int, ...], seed: int) -> Array:
    """Ordinary numbers of a dtype."""
    rng = np.random.default_rng([seed, *shape])
    if dtype.kind == "bool":
        return rng.random(shape) < 0.5
    if dtype.is_integer:
        return rng.integers(0 if dtype.kind == "uint" else -100, 100, shape).astype(dtype.numpy)
    return rng.normal(size=shape).astype(dtype.numpy)


def feeds_of(graph: Graph, sizes: Mapping[str, int]) -> dict[str, Array]:
    """An array for each input at these sizes."""
    found: dict[str, Array] = {}
    for number, value in enumerate(graph.inputs):
        shape = tuple(n if isinstance(n, int) else int(_number(n, sizes)) for n in value.shape)
        found[str(value.attrs["name"])] = drawn(value.dtype, shape, number)
    return found


def _number(size: Any, sizes: Mapping[str, int]) -> int:
    from dovetail.ir.dim import evaluate as number

    return number(size, sizes)


def expected_of(graph: Graph, feeds: Mapping[str, Array]) -> dict[str, Array]:
    """The outputs by the reference, in float64."""
    with np.errstate(all="ignore"):
        return evaluate(graph, feeds, lift=True)


def check(case: Case, got: Mapping[str, Array], feeds: Mapping[str, Array]) -> None:
    """What a run gives is near the reference."""
    expected = expected_of(Graph.of(case.outputs), feeds)
    for name, value in case.outputs.items():
        try:
            assert_close(got[name], expected[name], value.dtype, scale=case.scale)
        except AssertionError as wrong:
            raise AssertionError(f"{name}: {wrong}") from None


def _missing(step: Step) -> tuple[GpuKernel, ...]:
    raise AssertionError(f"there is no kernel for {step.value.op.name}")


def in_lockstep(
    case: Case, feeds: Mapping[str, Array], split: SplitLimits | None = None, device: GpuDevice = H200
) -> dict[str, Array]:
    """The outputs of a case on the machine in NumPy, by kernels for a device."""
    return run_in_lockstep(make_plan(Graph.of(case.outputs), target="cuda"), feeds, split, device)


def run_in_lockstep(
    plan: Plan, feeds: Mapping[str, Array], split: SplitLimits | None = None, device: GpuDevice = H200
) -> dict[str, Array]:
    """The outputs of a plan on the machine in NumPy, by kernels for a device."""
    steps = steps_of(plan, split, device)
    plan = placed(plan, [several for _, several in steps])
    memory = Memory(plan, prove=True)
    memory.give(plan.graph.parameters, {})
    memory.reserve("bound", plan.bound_size)
    memory.give(plan.graph.inputs, feeds)
    memory.reserve("arena", plan.arena_size)
    kernels = [(step, made) for step, several in steps for made in several or _missing(step)]
    workspace = memory.allocate(max([memory.number(made.workspace_bytes) for _, made in kernels], default=0))
    for _, made in kernels:
        buffers: dict[str, tuple[Array, int]] = {}
        for name, value in made.bindings.items():
            alias = plan.locate(value)
            if 0 in tuple(map(memory.number, value.tensor.shape)):
                buffers[name] = (np.empty(0, np.uint8), 0)
                continue
            buffer, start = memory.place(alias.root)
            buffers[name] = (buffer, start + memory.number(alias.offset))
        for name, packed in made.packed.items():
            content = np.ascontiguousarray(packed.pack(memory.view(packed.value)))
            buffers[name] = (content.reshape(-1).view(np.uint8), 0)
        for name in made.checks:
            buffers[name] = (np.zeros(8, np.uint8), 0)
        for name, at in made.workspace.items():
            buffers[name] = (workspace, memory.number(at))
        Machine(made.kernel, buffers, memory.sizes).run()
        assert f"@{made.kernel.name}(" in made.text, "what the machine runs is written, too"
    return {name: memory.copied(v) for name, v in plan.graph.outputs.items()}


__all__ = ["check", "drawn", "expected_of", "feeds_of", "in_lockstep", "run_in_lockstep"]
