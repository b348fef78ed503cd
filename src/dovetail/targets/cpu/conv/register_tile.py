"""Register tiles with filters in lanes: vectors of filters by a few pixels, and what finishes their sums."""

from __future__ import annotations

from dovetail.codegen.llvm.function import Function, Parameter, Signature
from dovetail.codegen.llvm.handles import I64, NULL, Int, Ptr, Vec
from dovetail.codegen.llvm.vector import VectorBuilder
from dovetail.dataclass import dataclass
from dovetail.kernels.device import CpuDevice
from dovetail.kernels.problems.epilogue import Epilogue
from dovetail.targets.cpu.conv.epilogue import RowTarget, activate


@dataclass(frozen=True, slots=True)
class RegisterTile:
    """What the code depends on: the device, vectors of filters, pixels, and what becomes of a sum."""

    device: CpuDevice
    filters: int
    """Vectors of filters."""
    pixels: int
    epilogue: Epilogue
    point: bool
    """Whether the window has one tap."""

    @property
    def block(self) -> int:
        """Filters of a tile."""
        return self.filters * self.device.lanes


def transpose_signature(epilogue: Epilogue) -> Signature:
    """`kernel.turn`; where results are rows of the workspace, these are `row_step` bytes apart."""
    rows = () if epilogue.rows is None else (Parameter("i64", "row_step"),)
    return Signature(
        "kernel.turn",
        (
            Parameter("ptr", "sums", "noalias readonly"), Parameter("ptr", "bias", "noalias readonly"),
            # Results may take the memory of the residual.
            Parameter("ptr", "r"), Parameter("ptr", "y"), Parameter("i64", "step"), Parameter("i64", "filters"),
            Parameter("i64", "pixels"), Parameter("i64", "apart"), *rows,
        ),
    )  # fmt: skip


def transpose_sums(tile: RegisterTile) -> Function:
    """Sums [pixel][filter] of one vector of filters as results [filter][pixel], with bias, residual and activation.

    Sums of successive pixels are `apart` bytes apart, results of successive filters `step`.
    """
    t = VectorBuilder(tile.device)
    lanes, epilogue = t.lanes, tile.epilogue
    pixels, step = I64("%pixels"), I64("%step")
    before = epilogue.before_residual
    bias = t.load(Ptr("%bias")) if epilogue.bias else None
    with t.steps(0, pixels, lanes) as pixel:
        rows: list[Vec] = []
        for i in range(lanes):
            # After the last pixel the last one is read again; what is made of it is not stored.
            number = t.smin(t.add(pixel, i), t.sub(pixels, 1))
            x = t.load(t.ptr_add(Ptr("%sums"), t.mul(number, I64("%apart"))))
            rows.append(activate(t, before.act, x if bias is None else t.fadd(x, bias)))
        mask = t.lanes_within(pixel, pixels)
        for i, x in enumerate(t.transpose(rows)):
            with t.when(t.icmp("slt", i, I64("%filters"))):
                by = t.add(t.mul(step, i), t.mul(pixel, 4))
                if epilogue.residual:
                    x = activate(t, epilogue.act, t.fadd(x, t.load_masked(mask, t.ptr_add(Ptr("%r"), by))))
                if epilogue.rows is not None:
                    by = t.add(t.mul(I64("%row_step"), i), t.mul(pixel, 4))
                t.store_masked(mask, x, t.ptr_add(Ptr("%y"), by))
    return t.function(transpose_signature(epilogue))


@dataclass(frozen=True, slots=True)
class Corner:
    """Which results are written: the image, the group, the block of filters among all, its first filter, the first
    pixel and how many pixels there are."""

    image: I64
    group: I64
    packed: I64
    first_filter: I64
    start: I64
    count: I64


@dataclass(frozen=True, slots=True)
class Results:
    """The tensors that finish a sum, and the sizes of the result."""

    b: Ptr
    r: Ptr
    r_image: I64
    filters: I64
    pixels: I64
    """Pixels of an image."""
    target: RowTarget | None = None
    """Where steps on rows read the results."""


def write_transposed(t: VectorBuilder, tile: RegisterTile, of: Results, at: Corner, sums: Ptr, results: Ptr) -> None:
    """Transpose the sums of a block of filters, a vector of filters at a time, and finish them."""
    lanes, area = t.lanes, t.mul(of.pixels, 4)
    with t.loop(0, tile.filters) as vector:
        first = t.add(at.first_filter, t.mul(vector, lanes))
        own = t.smin(lanes, t.sub(of.filters, first))
        with t.when(t.icmp("sgt", own, 0)):
            bias = residual = NULL
            if tile.epilogue.bias:
                bias = t.ptr_add(of.b, t.mul(t.add(t.mul(at.packed, tile.block), t.mul(vector, lanes)), 4))
            target = t.ptr_add(results, t.mul(t.mul(vector, lanes), area))
            here = t.ptr_add(sums, t.mul(vector, t.bytes))
            if tile.epilogue.residual:
                channel = t.add(t.mul(at.group, of.filters), first)
                within = t.add(t.mul(channel, area), t.mul(at.start, 4))
                residual = t.ptr_add(t.ptr_add(of.r, t.mul(at.image, of.r_image)), within)
            write_finished(
                t, tile.epilogue, of.target, here, bias, residual, target, area, own, at.count, 4 * tile.block, vector
            )
    if of.target is not None:
        held = t.smin(tile.block, t.sub(of.filters, at.first_filter))
        channel = t.add(t.mul(at.group, of.filters), at.first_filter)
        of.target.write(t, t.mul(at.count, 4), held, at.count, (at.image, channel, at.start))


def write_finished(
    t: VectorBuilder,
    epilogue: Epilogue,
    onto: RowTarget | None,
    sums: Ptr,
    bias: Ptr,
    residual: Ptr,
    y: Ptr,
    area: I64,
    filters: I64,
    pixels: I64,
    apart: int,
    vector: I64,
) -> None:
    """Transpose the sums of one vector of filters: as results at `y`, or as rows that the epilogue reads later."""
    called = transpose_signature(epilogue)
    if onto is None:
        t.call(called, sums, bias, residual, y, area, filters, pixels, apart)
        return
    pitch = t.mul(pixels, 4)
    rows = t.ptr_add(onto.rows, t.mul(t.mul(vector, t.lanes), pitch))
    t.call(called, sums, bias, residual, rows, area, filters, pixels, apart, pitch)


def write_prefetched_rows(t: VectorBuilder, results: Ptr, filters: Int, area: Int, offset: Int) -> None:
    """Prefetch the lines of results of some filters for writing: they are cold."""
    with t.loop(0, filters) as one:
        t.prefetch(t.ptr_add(results, t.add(t.mul(one, area), offset)), for_write=True)
