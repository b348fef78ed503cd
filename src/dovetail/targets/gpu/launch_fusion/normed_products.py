"""Products with few rows whose left rows are an RMS norm: they read what is normed, and scale their sums.

Every block would otherwise norm all rows before it multiplies. The squares of rows add up while it multiplies, and the
scale, which is the same for all of k, multiplies sums.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import TypeAlias

from dovetail.ir.dtype import bf16, f32
from dovetail.ir.value import Value
from dovetail.kernels.choice import Refused
from dovetail.kernels.gpu.gemm.norms import normed_product
from dovetail.kernels.loops.ir import Kernel
from dovetail.kernels.spec import ALIGNMENT, TensorLocations
from dovetail.library import rms_norm
from dovetail.plan.alias import is_dense
from dovetail.plan.plan import Step
from dovetail.targets.gpu.kernel import GpuKernel
from dovetail.targets.gpu.launch_fusion.launch_choices import FITS, ONE_READER, SCALED, LaunchChoices, Need
from dovetail.targets.gpu.select import Selection

LaunchedStep: TypeAlias = tuple[Step, tuple[GpuKernel, ...]]
GAIN = "gain"
"""The pointer to the gains of a norm."""
IS_NORM = Need("it_is_an_rms_norm", "an RMS norm", "")
MAY_SCALE = Need("sums_may_be_scaled", "arithmetic that is not strict", "compile without strict")
HAS_GAIN = Need("norm_has_a_gain", "rows and a gain", "give the norm a gain, of ones if need be")
HAS_RANGE = Need(
    "rows_have_the_range", "rows and gain in bf16 or f32", "bf16 in place of f16, which does not hold unscaled rows"
)
IS_CONSTANT = Need("gain_is_constant", "a gain that runs do not change", "make the gain a parameter")
IS_DENSE = Need("rows_are_dense", "dense rows and an aligned gain", "copy the rows, or the gain, to memory of its own")
IS_PACKED = Need(
    "weights_are_packed", "few rows, and weights packed in tiles for them", "fewer rows, or blocks of bits"
)
TAKES_NORM = Need("tile_takes_a_norm", "a tile of few rows that adds up squares", "16 rows or fewer")


def with_normed_rows(
    before: LaunchedStep,
    after: LaunchedStep,
    read: str,
    selection: Selection,
    known: dict[Hashable, Kernel | None],
    kept: Callable[..., GpuKernel],
    choices: LaunchChoices,
    *,
    keeps: bool,
) -> GpuKernel | None:
    """The kernel of a product that norms its left rows itself, which it read through `read`; None where it cannot.

    `known` has kernels by those that they replace, `kept` makes one kernel for equal layers, and `choices` records
    what refuses. Rows that others read too, which the product `keeps`, need a kernel.
    """
    kernel = ONE_READER.refused("several") if keeps else _scaled(before, after, read, selection, known, kept)
    if before[0].value.op is rms_norm:
        choices.record([before[0]], SCALED, kernel if isinstance(kernel, Refused) else None)
    return None if isinstance(kernel, Refused) else kernel


def _scaled(
    before: LaunchedStep,
    after: LaunchedStep,
    read: str,
    selection: Selection,
    known: dict[Hashable, Kernel | None],
    kept: Callable[..., GpuKernel],
) -> GpuKernel | Refused:
    (step, (small,)), (next_step, (large,)) = before, after
    norm = normed_by(step, selection.locations)
    if isinstance(norm, Refused):
        return norm
    if not large.packed:
        return IS_PACKED.refused("weights in rows")
    if not set(norm) <= set(small.bindings.values()) or GAIN in large.bindings:
        return IS_NORM.refused("another kernel")
    x, gain = norm
    key = GAIN, small.kernel.identity, large.kernel.identity, read
    if key not in known:
        job = normed_product(selection.problem(next_step), x, gain, float(step.value.attrs["eps"]), GAIN)
        kernel = None if job is None or not isinstance(job.kernel, Kernel) else job.kernel
        known[key] = kernel
    kernel = known[key]
    if kernel is None:
        return TAKES_NORM.refused("another tile")
    if kernel.launch is None or kernel.launch.shared_bytes > selection.device.shared_bytes:
        return FITS.refused(f"{0 if kernel.launch is None else kernel.launch.shared_bytes:,} bytes")
    bindings = {**large.bindings, read: x, GAIN: gain}
    return kept((*key, "scaled sums"), bindings, lambda: kernel, packed=large.packed)


def normed_by(step: Step, locations: TensorLocations) -> tuple[Value, Value] | Refused:
    """What a step norms and the gain, where products may read these instead of its result."""
    value = step.value
    if value.op is not rms_norm:
        return IS_NORM.refused(value.op.name)
    if locations.strict:
        return MAY_SCALE.refused("strict")
    if len(value.operands) != 2:
        return HAS_GAIN.refused(f"{len(value.operands)} operands")
    x, gain = value.operands
    # Rows without their scale are of any size, which f16 does not hold.
    if x.type != value.type or x.dtype is not gain.dtype or x.dtype not in (bf16, f32):
        return HAS_RANGE.refused(f"rows in {x.dtype}, a gain in {gain.dtype}")
    if not locations.is_constant(gain):
        return IS_CONSTANT.refused("a gain that a run computes or is given")
    dense = all(is_dense(v.tensor, locations(v).strides) for v in (x, gain))
    if not dense or locations.alignment({GAIN: gain})[GAIN] % ALIGNMENT:
        return IS_DENSE.refused("rows apart" if not dense else "a gain between lines")
    return x, gain


__all__ = ["LaunchedStep", "normed_by", "with_normed_rows"]
