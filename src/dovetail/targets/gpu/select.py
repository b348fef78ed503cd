"""Which kernels a step becomes on a GPU: mostly one; few long rows and scattered updates take several."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from types import MappingProxyType

from dovetail import ops
from dovetail.dataclass import dataclass
from dovetail.declare.fused import FusedOp
from dovetail.ir.dim import Size
from dovetail.ir.value import Value
from dovetail.kernels.choice import StepProblem
from dovetail.kernels.device import GpuDevice
from dovetail.kernels.families.fill import offer_fill
from dovetail.kernels.families.gather import offer_gather
from dovetail.kernels.families.map import offer_map
from dovetail.kernels.families.move import offer_move
from dovetail.kernels.families.rows import offer_rows
from dovetail.kernels.families.view_fusion import offer_weave
from dovetail.kernels.gpu.attention.choice import (
    offer_attend,
    offer_attend_fma,
    offer_attend_groups,
    offer_attend_lanes,
)
from dovetail.kernels.gpu.attention.row import has_attention, is_attention, offer_attend_row
from dovetail.kernels.gpu.conv.convolve import offer_copied, offer_fma, offer_gathered
from dovetail.kernels.gpu.conv.folded import offer_folded
from dovetail.kernels.gpu.conv.slide import offer_depthwise, offer_pool
from dovetail.kernels.gpu.gemm.engines import BLOCKS, DENSE, Engine, has_blocks, offer_engine
from dovetail.kernels.gpu.order.passes import Passes
from dovetail.kernels.gpu.widened_rows import widened_rows
from dovetail.kernels.loops.folds import is_reduction
from dovetail.kernels.loops.gpu_schedule import GpuShape, schedule
from dovetail.kernels.loops.ir import Kernel, KernelKind
from dovetail.kernels.loops.split_reduce import SplitLimits, split_reduction
from dovetail.kernels.request import LAUNCH, Request
from dovetail.kernels.spec import ALIGNMENT, Job, Packed, Status, TensorLocations
from dovetail.ops.region import region
from dovetail.plan.plan import Step
from dovetail.targets.gpu.backend import GpuBackend
from dovetail.targets.gpu.data_kinds import DATA_KINDS
from dovetail.targets.gpu.images import POOLS, is_convolved
from dovetail.targets.gpu.kernel import Code, GpuKernel
from dovetail.targets.gpu.loops import SHAPE, loops_of, split_limits, with_even_vectors
from dovetail.targets.runtime.selection import Kind, Row, Table

__all__ = ["TABLE", "WINDOWS", "Selection", "finished", "kernel_of_step", "make_kernels"]

CONVOLUTIONS: tuple[Row[GpuDevice], ...] = (
    Row("depthwise", offer_depthwise),
    Row("convolve.copied", offer_copied),
    Row("convolve.folded", offer_folded),
    Row("convolve.gathered", offer_gathered),
    Row("convolve.fma", offer_fma),
)
WINDOWS: tuple[Kind[GpuDevice], ...] = (
    Kind("convolution", is_convolved, lambda: CONVOLUTIONS),
    Kind("pool", lambda v: v.op in (*POOLS, ops.max_pool_indices), lambda: (Row("pool", offer_pool),)),
)
"""The kinds of problem, and their kernels in the order of preference."""


def _kind(name: str, takes: Callable[[Value], bool], *rows: Row[GpuDevice]) -> Kind[GpuDevice]:
    return Kind(name, takes, lambda: rows)


def _gemm_rows(engines: Mapping[str, Engine]) -> Sequence[Row[GpuDevice]]:
    return [Row(name, offer_engine(engine)) for name, engine in engines.items()]


def _is_fused(value: Value) -> bool:
    """Whether the body of a step says what it computes, which is no attention and no convolution."""
    is_open = value.op is region or isinstance(value.op, FusedOp)
    return is_open and not is_attention(value) and not has_attention(value) and not is_convolved(value)


def _may_multiply(value: Value) -> bool:
    return value.op is ops.matmul or _is_fused(value)


def _has_gemm(of: StepProblem[GpuDevice]) -> bool:
    return any([v.op is ops.matmul for v in of.body.order])


TABLE: Table[GpuDevice] = Table(
    (
        Kind(
            "elementwise",
            lambda v: v.op.elementwise or is_reduction(v) or _is_fused(v),
            lambda: (Row("map", offer_map), Row("rows", offer_rows), Row("weave", offer_weave)),
            lambda of: not _has_gemm(of),
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
        _kind("widened attention", has_attention, Row("attend_row", offer_attend_row)),
        *WINDOWS,
        Kind(
            "gemm",
            _may_multiply,
            lambda: _gemm_rows(DENSE),
            lambda of: _has_gemm(of) and not has_blocks(of),
            in_order=True,
        ),
        Kind("gemm of blocks", _may_multiply, lambda: _gemm_rows(BLOCKS), has_blocks, in_order=True),
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


@dataclass(frozen=True, slots=True)
class Selection:
    """What the kernels of a plan are selected for."""

    locations: TensorLocations
    device: GpuDevice
    backend: GpuBackend
    request: Request = LAUNCH
    """The request for a kernel unless a call says otherwise: a launch, which starts early where that pays."""

    def problem(self, step: Step) -> StepProblem[GpuDevice]:
        """A step as its engines see it."""
        return StepProblem(step, self.locations, self.device, self.request)


def make_kernels(step: Step, selection: Selection, request: Request | None = None) -> tuple[GpuKernel, ...]:
    """The kernels of a step, in the order in which they run; none where no family takes it."""
    selection = selection if request is None else replace(selection, request=request)
    request, device, machine = selection.request, selection.device, selection.backend.machine
    shape, limits = request.shape or SHAPE, request.rows or split_limits(device)
    if device.warp != shape.lanes:
        shape = replace(shape, lanes=device.warp)
        selection = replace(selection, locations=replace(selection.locations, target=loops_of(device.warp)))
    job = TABLE.select(step, selection.locations, device, machine, request)
    kernel = job.kernel if job is not None else None
    if request.starts_early and isinstance(kernel, Kernel) and kernel.kind is KernelKind.ROWS:
        evened = _evened(step, selection.locations)
        job = job if evened is selection.locations else TABLE.select(step, evened, device, machine, request)
    return () if job is None else _scheduled(job, step, selection, limits, shape)


def _evened(step: Step, locations: TensorLocations) -> TensorLocations:
    """Vectors of rows for latency, which is what counts where launches are short."""
    width = step.results[0].shape[-1] if step.results[0].shape else 0
    return with_even_vectors(locations, step, width) if isinstance(width, int) else locations


def _scheduled(
    job: Job, step: Step, selection: Selection, limits: SplitLimits, shape: GpuShape
) -> tuple[GpuKernel, ...]:
    kernel = job.kernel
    printed = partial(kernel_of_step, step=step, selection=selection)
    bindings = {name: v for name, v in job.bindings.items() if isinstance(v, Value)}
    checks = tuple([name for name, v in job.bindings.items() if isinstance(v, Status)])
    packed = {name: v for name, v in job.bindings.items() if isinstance(v, Packed)}
    if not isinstance(kernel, Kernel):
        return ()
    if kernel.kind == KernelKind.ROWS and not selection.locations.strict:
        kernel = widened_rows(kernel)
    if isinstance(job, Passes):
        return _passes(job, bindings, packed, checks, printed, shape)
    if kernel.launch is not None:
        return (printed(kernel, bindings, packed=packed),)
    if packed:
        return ()
    if checks:
        return (replace(printed(schedule(kernel, job.tiled.tiles, shape), bindings), checks=checks),)
    split = split_reduction(kernel, job.tiled.tiles, selection.locations.target.tiles.bundle, limits)
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
    kernels: list[GpuKernel] = []
    for kernel, tiles in job.passes:
        shaped = schedule(kernel, tiles, shape) if kernel.launch is None else kernel
        own = {name: at for name, at in places.items() if name in shaped.pointers}
        checked = tuple([name for name in checks if name in shaped.pointers])
        finished_kernel = printed(shaped, bindings, workspace=own, packed=packed)
        kernels.append(replace(finished_kernel, workspace_bytes=end, checks=checked))
    return tuple(kernels)


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
    selection: Selection,
    workspace: Mapping[str, Size] = MappingProxyType({}),
    packed: Mapping[str, Packed] = MappingProxyType({}),
) -> GpuKernel:
    """A scheduled kernel of a step with its text, and what it reads of operands that results overwrite."""
    bindings = {name: v for name, v in bindings.items() if name in kernel.pointers}
    if step.overs:
        # A result takes the memory of an operand, which must then not be read through the read-only cache.
        taken = {v for pair in zip(step.overs, step.results, strict=True) if pair[0] is not None for v in pair}
        overwritten = {name for name, v in bindings.items() if selection.locations(v).root in taken}
        kernel = replace(kernel, shared=tuple(sorted(overwritten)))
    return finished(kernel, bindings, selection, workspace, packed)


def finished(
    kernel: Kernel,
    bindings: Mapping[str, Value],
    selection: Selection,
    workspace: Mapping[str, Size] = MappingProxyType({}),
    packed: Mapping[str, Packed] = MappingProxyType({}),
) -> GpuKernel:
    """A scheduled kernel with its text, which is written when it is needed."""
    locations = selection.locations
    alignment = locations.alignment(bindings) | dict.fromkeys((*workspace, *packed), ALIGNMENT)
    packed = {name: v for name, v in packed.items() if name in kernel.pointers}
    if kernel.launch is not None and kernel.launch.warp != selection.device.warp:
        kernel = replace(kernel, launch=replace(kernel.launch, warp=selection.device.warp))
    if selection.request.starts_early and kernel.launch is not None:
        constants = tuple([name for name, v in {**bindings, **packed}.items() if locations.is_constant(v)])
        kernel = replace(kernel, launch=replace(kernel.launch, dependent=True), constants=constants)
    code = Code(partial(selection.backend.printer, kernel, alignment, selection.device.architecture))
    return GpuKernel(kernel, code, bindings, workspace, packed=packed)
