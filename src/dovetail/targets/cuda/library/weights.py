"""The weights of a program, which stay from run to run, and whether L2 holds them from one run to the next."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from dovetail.ir import leaf
from dovetail.ir.value import Value
from dovetail.plan.plan import Plan
from dovetail.targets.gpu.kernel import GpuKernel, Kernels


def weights_of(plan: Plan, values: Iterable[Value]) -> set[Value]:
    """The roots of tensors that are weights: parameters, constants and results of the bind phase."""
    bound = {plan.root_of(v) for step in plan.phase("bind") for v in step.results}
    roots = {plan.root_of(v) for v in values}
    return {root for root in roots if root.op in (leaf.PARAM, leaf.CONST) or root in bound}


def weight_bytes(plan: Plan, kernels: Sequence[GpuKernel]) -> int:
    """The bytes of weights that kernels read, once each. Packed ones take about what their originals do."""
    packed = {v for kernel in kernels for one in kernel.packed.values() for v in (one.value, *one.beside)}
    read = {v for kernel in kernels for v in kernel.bindings.values()} | packed
    by_root = dict.fromkeys(weights_of(plan, read), 0)
    for value in read:
        root = plan.root_of(value)
        count, most = value.tensor.bytes, root.tensor.bytes
        # Sizes that are not known yet are not counted: products of such programs are rarely measured.
        if root in by_root and isinstance(count, int) and isinstance(most, int):
            by_root[root] = min(most, by_root[root] + count)
    return sum(by_root.values())


def are_cold(plan: Plan, steps: Sequence[Kernels], l2_bytes: int) -> bool:
    """Whether the weights of a program exceed L2, so that every run reads them from memory."""
    return weight_bytes(plan, [kernel for kernels in steps for kernel in kernels or ()]) > l2_bytes


__all__ = ["are_cold", "weight_bytes", "weights_of"]
