"""Products with few rows whose left rows are an RMS norm: they read what is normed, and scale their sums.

Every block would otherwise norm all rows before it multiplies. The squares of rows add up while it multiplies, and the
scale, which is the same for all of k, multiplies sums.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import TypeAlias

from dovetail.ir.dtype import bf16, f32
from dovetail.ir.value import Value
from dovetail.kernels.choice import StepProblem
from dovetail.kernels.device import GpuDevice
from dovetail.kernels.gpu.contract_norms import normed_product
from dovetail.kernels.loops.ir import Kernel
from dovetail.kernels.spec import ALIGNMENT, TensorLocations
from dovetail.library import rms_norm
from dovetail.plan.alias import is_dense
from dovetail.plan.plan import Step
from dovetail.targets.cuda.gpu_kernel import GpuKernel

Made: TypeAlias = tuple[Step, tuple[GpuKernel, ...]]
GAIN = "gain"
"""The pointer to the gains of a norm."""


def with_normed_rows(
    before: Made,
    after: Made,
    read: str,
    locations: TensorLocations,
    device: GpuDevice,
    known: dict[Hashable, Kernel | None],
    kept: Callable[..., GpuKernel],
) -> GpuKernel | None:
    """The kernel of a product that norms its left rows itself, which it read through `read`; None where it cannot.

    `known` has kernels by those that they replace, and `kept` makes one kernel for equal layers.
    """
    (step, (small,)), (next_step, (large,)) = before, after
    norm = normed_by(step, locations)
    if norm is None or not set(norm) <= set(small.bindings.values()) or GAIN in large.bindings or not large.packed:
        return None
    x, gain = norm
    key = GAIN, id(small.kernel), id(large.kernel), read
    if key not in known:
        job = normed_product(StepProblem(next_step, locations, device), x, gain, float(step.value.attrs["eps"]), GAIN)
        kernel = None if job is None or not isinstance(job.kernel, Kernel) else job.kernel
        fits = kernel is not None and kernel.launch is not None and kernel.launch.shared_bytes <= device.shared_bytes
        known[key] = kernel if fits else None
    kernel = known[key]
    if kernel is None:
        return None
    bindings = {**large.bindings, read: x, GAIN: gain}
    return kept((*key, "scaled sums"), bindings, lambda: kernel, packed=large.packed)


def normed_by(step: Step, locations: TensorLocations) -> tuple[Value, Value] | None:
    """What a step norms and the gain, where products may read these instead of its result."""
    value = step.value
    if value.op is not rms_norm or locations.strict or len(value.operands) != 2:
        return None
    x, gain = value.operands
    # Rows without their scale are of any size, which f16 does not hold.
    if (
        x.type != value.type
        or x.dtype is not gain.dtype
        or x.dtype not in (bf16, f32)
        or not locations.is_constant(gain)
    ):
        return None
    dense = all(is_dense(v.tensor, locations(v).strides) for v in (x, gain))
    return (x, gain) if dense and locations.alignment({GAIN: gain})[GAIN] % ALIGNMENT == 0 else None


__all__ = ["normed_by", "with_normed_rows"]
