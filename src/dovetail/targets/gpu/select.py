"""Which kernels a step becomes on an NVIDIA GPU: mostly one; few long rows and scattered updates take several."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from types import MappingProxyType

from dovetail import ops
from dovetail.codegen.llvm.nvptx import ptx
from dovetail.declare.fused import FusedOp
from dovetail.ir.dim import Size
from dovetail.ir.value import Value
from dovetail.kernels.device import GpuDevice
from dovetail.kernels.families.fill import offer_fill
from dovetail.kernels.families.gather import offer_gather
from dovetail.kernels.families.map import offer_map
from dovetail.kernels.families.move import offer_move
from dovetail.kernels.families.rows import ROWS, offer_rows
from dovetail.kernels.families.view_fusion import offer_weave
from dovetail.kernels.gpu.attention.offers import (
    offer_attend,
    offer_attend_fma,
    offer_attend_groups,
    offer_attend_lanes,
)
from dovetail.kernels.gpu.attention.row import is_attention, offer_attend_row
from dovetail.kernels.gpu.conv.convolve import offer_copied, offer_fma, offer_gathered
from dovetail.kernels.gpu.conv.folded import offer_folded
from dovetail.kernels.gpu.conv.slide import offer_depthwise, offer_pool
from dovetail.kernels.gpu.gemm.contract import offer_contract
from dovetail.kernels.gpu.order.passes import Passes
from dovetail.kernels.gpu.widened_rows import widened_rows
from dovetail.kernels.loops.folds import is_reduction
from dovetail.kernels.loops.gpu_schedule import GpuShape, schedule
from dovetail.kernels.loops.ir import Kernel
from dovetail.kernels.loops.split_reduce import SplitLimits, split_reduction
from dovetail.kernels.spec import ALIGNMENT, Job, Packed, Status, TensorLocations
from dovetail.ops.region import region
from dovetail.plan.plan import Step
from dovetail.targets.cuda.claims import CLAIMS
from dovetail.targets.gpu.data_kinds import DATA_KINDS
from dovetail.targets.gpu.images import POOLS, is_convolved
from dovetail.targets.gpu.kernel import Code, GpuKernel
from dovetail.targets.gpu.launch_fusion.even_vectors import with_even_vectors
from dovetail.targets.gpu.loops import SHAPE, loops_of, split_limits
from dovetail.targets.runtime.selection import Kind, Row, Table

__all__ = ["TABLE", "WINDOWS", "finished", "kernel_of_step", "make_kernels", "module_of"]

CONVOLUTIONS: tuple[Row[GpuDevice | None], ...] = (
    Row("depthwise", offer_depthwise),
    Row("convolve.copied", offer_copied),
    Row("convolve.folded", offer_folded),
    Row("convolve.gathered", offer_gathered),
    Row("convolve.fma", offer_fma),
)
WINDOWS: tuple[Kind[GpuDevice | None], ...] = (
    Kind("convolution", is_convolved, lambda: CONVOLUTIONS),
    Kind("pool", lambda v: v.op in (*POOLS, ops.max_pool_indices), lambda: (Row("pool", offer_pool),)),
)
"""The kinds of problem, and their kernels in the order of preference."""


def _kind(name: str, takes: Callable[[Value], bool], *rows: Row[GpuDevice | None]) -> Kind[GpuDevice | None]:
    return Kind(name, takes, lambda: rows)


def _is_elementwise(value: Value) -> bool:
    return value.op.elementwise or is_reduction(value) or value.op is region or isinstance(value.op, FusedOp)


def _is_a_contraction(value: Value) -> bool:
    return value.op is ops.matmul or value.op is region or isinstance(value.op, FusedOp)


TABLE: Table[GpuDevice | None] = Table(
    (
        _kind(
            "elementwise",
            _is_elementwise,
            Row("map", offer_map),
            Row("rows", offer_rows),
            Row("weave", offer_weave),
        ),
        _kind(
            "attention",
            is_attention,
            Row("attend_lanes", offer_attend_lanes),
            Row("attend_groups", offer_attend_groups),
            Row("attend", offer_attend),
            Row("attend_fma", offer_attend_fma),
            Row("attend_row", offer_attend_row),
        ),
        _kind("widened_attention", lambda v: v.op is region, Row("attend_row", offer_attend_row)),
        *WINDOWS,
        _kind("contraction", _is_a_contraction, Row("contract", offer_contract)),
        _kind(
            "gather", lambda v: v.op in (ops.gather, ops.gather_elements, ops.gather_nd), Row("gather", offer_gather)
        ),
        _kind("copy", lambda v: v.op in (ops.merge, ops.concat, ops.pad), Row("move", offer_move)),
        _kind("fill", lambda v: v.op in (ops.extent, ops.iota, ops.random_bits), Row("fill", offer_fill)),
        *DATA_KINDS,
    ),
    on_host="host",
)
"""The kernel families that run on a GPU."""


def make_kernels(
    step: Step,
    locations: TensorLocations,
    split: SplitLimits | None,
    device: GpuDevice,
    shape: GpuShape = SHAPE,
) -> tuple[GpuKernel, ...]:
    """The kernels of a step, in the order in which they run; none where no family takes it.

    `split` says when long rows are split over blocks; without it, the device's multiprocessors decide.
    """
    if device.warp != shape.lanes:
        shape, locations = replace(shape, lanes=device.warp), replace(locations, target=loops_of(device.warp))
    job = TABLE.select(step, locations, device, CLAIMS.machine)
    if job is not None and isinstance(job.kernel, Kernel) and job.kernel.name == ROWS and device.dependent_launches:
        evened = _evened(step, locations)
        job = job if evened is locations else TABLE.select(step, evened, device, CLAIMS.machine)
    return () if job is None else _scheduled(job, step, locations, split or split_limits(device), device, shape)


def _evened(step: Step, locations: TensorLocations) -> TensorLocations:
    """Vectors of rows for latency, which is what counts where launches are short."""
    width = step.results[0].shape[-1] if step.results[0].shape else 0
    return with_even_vectors(locations, step, width) if isinstance(width, int) else locations


def _scheduled(
    job: Job, step: Step, locations: TensorLocations, limits: SplitLimits, device: GpuDevice, shape: GpuShape
) -> tuple[GpuKernel, ...]:
    kernel = job.kernel
    printed = partial(kernel_of_step, step=step, locations=locations, device=device)
    bindings = {name: v for name, v in job.bindings.items() if isinstance(v, Value)}
    checks = tuple([name for name, v in job.bindings.items() if isinstance(v, Status)])
    packed = {name: v for name, v in job.bindings.items() if isinstance(v, Packed)}
    if not isinstance(kernel, Kernel):
        return ()
    if kernel.name == ROWS and not locations.strict:
        kernel = widened_rows(kernel)
    if isinstance(job, Passes):
        return _passes(job, bindings, packed, checks, printed, shape)
    if kernel.launch is not None:
        return (printed(kernel, bindings, packed=packed),)
    if packed:
        return ()
    if checks:
        return (replace(printed(schedule(kernel, job.tiled.tiles, shape), bindings), checks=checks),)
    split = split_reduction(kernel, job.tiled.tiles, locations.target.tiles.bundle, limits)
    if split is None:
        return (printed(schedule(kernel, job.tiled.tiles, shape), bindings),)
    places, end = _placed({partial.pointer: partial.nbytes for partial in split.partials})
    kernels = schedule(split.first, split.pieces, shape), schedule(split.second, job.tiled.tiles, shape)
    return tuple([replace(printed(k, bindings, workspace=places), workspace_bytes=end) for k in kernels])


def _passes(
    job: Passes,
    bindings: Mapping[str, Value],
    packed: Mapping[str, Packed],
    checks: Sequence[str],
    printed: Callable[..., GpuKernel],
    shape: GpuShape,
) -> tuple[GpuKernel, ...]:
    places, end = _placed(job.workspace)
    found: list[GpuKernel] = []
    for kernel, tiles in job.passes:
        shaped = schedule(kernel, tiles, shape) if kernel.launch is None else kernel
        own = {name: at for name, at in places.items() if name in shaped.pointers}
        told = tuple([name for name in checks if name in shaped.pointers])
        made = printed(shaped, bindings, workspace=own, packed=packed)
        found.append(replace(made, workspace_bytes=end, checks=told))
    return tuple(found)


def _placed(workspace: Mapping[str, Size]) -> tuple[dict[str, Size], Size]:
    """The offset of each array in the workspace, and the bytes of all."""
    places: dict[str, Size] = {}
    end: Size = 0
    for name, nbytes in workspace.items():
        places[name] = end
        end = (end + nbytes + (ALIGNMENT - 1)) // ALIGNMENT * ALIGNMENT
    return places, end


def kernel_of_step(
    kernel: Kernel,
    bindings: Mapping[str, Value],
    *,
    step: Step,
    locations: TensorLocations,
    device: GpuDevice,
    workspace: Mapping[str, Size] = MappingProxyType({}),
    packed: Mapping[str, Packed] = MappingProxyType({}),
) -> GpuKernel:
    """A scheduled kernel of a step with its text, and what it reads of operands that results overwrite."""
    bindings = {name: v for name, v in bindings.items() if name in kernel.pointers}
    if step.overs:
        # A result takes the memory of an operand, which must then not be read through the read-only cache.
        taken = {v for pair in zip(step.overs, step.results, strict=True) if pair[0] is not None for v in pair}
        overwritten = {name for name, v in bindings.items() if locations(v).root in taken}
        kernel = replace(kernel, shared=tuple(sorted(overwritten)))
    return finished(kernel, bindings, locations, device, workspace, packed)


def finished(
    kernel: Kernel,
    bindings: Mapping[str, Value],
    locations: TensorLocations,
    device: GpuDevice,
    workspace: Mapping[str, Size] = MappingProxyType({}),
    packed: Mapping[str, Packed] = MappingProxyType({}),
) -> GpuKernel:
    """A scheduled kernel with its text, which is written when it is needed."""
    alignment = locations.alignment(bindings) | dict.fromkeys((*workspace, *packed), ALIGNMENT)
    packed = {name: v for name, v in packed.items() if name in kernel.pointers}
    if kernel.launch is not None and kernel.launch.warp != device.warp:
        kernel = replace(kernel, launch=replace(kernel.launch, warp=device.warp))
    if device.dependent_launches and kernel.launch is not None:
        constants = tuple([name for name, v in {**bindings, **packed}.items() if locations.is_constant(v)])
        kernel = replace(kernel, launch=replace(kernel.launch, dependent=True), constants=constants)
    return GpuKernel(
        kernel, Code(partial(module_of, kernel, alignment, device.architecture)), bindings, workspace, packed=packed
    )


def module_of(kernel: Kernel, alignment: Mapping[str, int], architecture: str) -> str:
    """A scheduled kernel as LLVM's text for an architecture."""
    if architecture.startswith("gfx"):
        from dovetail.codegen.llvm.amdgpu.printer import module

        return module(kernel, alignment, architecture)
    return ptx.module(kernel, alignment)
