"""Direct convolution: one kernel for every size, stride, dilation and padding.

A tile is some output channels of a block of rows and columns of one image. The patch that the block sees is packed
once, so that all rows of a block are one long run of columns. The few columns between two rows are computed too, and
left out when results are copied.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache

from dovetail.codegen.llvm.arguments import Region
from dovetail.codegen.llvm.function import Function, Parameter, Signature
from dovetail.codegen.llvm.handles import F32, FALSE, I1, I64, NULL, Carried, Int, Ptr, Vec
from dovetail.codegen.llvm.kernel import (
    BEGIN,
    END,
    SCRATCH,
    WORDS,
    Arguments,
    KernelCode,
    assemble,
    kernel_function,
    one_of,
)
from dovetail.codegen.llvm.once import once_for
from dovetail.codegen.llvm.vector import ZERO, VectorBuilder
from dovetail.dataclass import dataclass
from dovetail.ir.dim import Size, product
from dovetail.ir.value import Value
from dovetail.kernels.choice import Refused
from dovetail.kernels.device import CpuDevice
from dovetail.kernels.problems.convolution import Convolution, ConvProblem
from dovetail.kernels.spec import TensorLocations, Tiling
from dovetail.targets.cpu.conv.candidate import Candidate, Candidates, ConvTiler, Effort
from dovetail.targets.cpu.conv.epilogue import (
    activate,
    arguments_of,
    finish_row,
    finish_signature,
    row_regions,
    writer_of,
)
from dovetail.targets.cpu.conv.packing import packed, pointers
from dovetail.targets.cpu.conv.patches import (
    PatchLayout,
    WindowArgs,
    each_tap,
    pack_phase,
    patch_layout,
    prefetch_share,
    write_patch,
    write_tap_offsets,
    write_zero_stuffed,
    zero_stuff,
)
from dovetail.targets.cpu.conv.pixels_in_lanes import PixelTile, pixels_effort, with_products
from dovetail.targets.cpu.conv.policy import BLOCKS, LIMITS
from dovetail.targets.cpu.row_epilogue import RowWriter


@lru_cache(64)
def register_tiles(tile: PixelTile) -> Function:
    """Register tiles of every width, as one function with the width as an argument."""
    members = {vectors: register_tile(tile, vectors) for vectors in range(1, tile.vectors + 1)}
    return one_of(tile_signature(tile).name, members)


def tile_signature(tile: PixelTile, vectors: int | None = None) -> Signature:
    """One register tile, or with `vectors` None the function that takes their number."""
    name = (
        f"tile.{tile.device.lanes}.{tile.filters}.{tile.vectors}{tile.epilogue.marks}{'.point' if tile.point else ''}"
    )
    which = () if vectors is not None else (Parameter("i64", "which"),)
    return Signature(
        name if vectors is None else f"{name}.{vectors}",
        (
            Parameter("ptr", "w", "noalias readonly"), Parameter("ptr", "x", "noalias readonly"),
            Parameter("i64", "plane"), Parameter("ptr", "offsets", "noalias readonly"), Parameter("i64", "taps"),
            Parameter("i64", "channels"), Parameter("ptr", "y", "noalias"), Parameter("i64", "pitch"),
            Parameter("ptr", "bias", "noalias readonly"), *which,
        ),
    )  # fmt: skip


def register_tile(tile: PixelTile, vectors: int) -> Function:
    """Some filters by some vectors of columns, summed over channels and taps."""
    t = VectorBuilder(tile.device)
    bias = [t.load_splat(t.ptr_add(Ptr("%bias"), 4 * i)) if tile.epilogue.bias else ZERO for i in range(tile.filters)]
    # Carried are the first channel of a piece, and pointers into weights and patch.
    with t.repeat([0], [Ptr("%w"), Ptr("%x")]) as piece:
        first = t.icmp("eq", piece.integers[0], 0)
        together = BLOCKS.direct.point_piece if tile.point else BLOCKS.direct.piece
        stop = t.smin(I64("%channels"), t.add(piece.integers[0], together))
        starts = [t.select_vec(first, start, ZERO) for start in bias]
        with t.repeat(piece.integers, piece.pointers, [x for x in starts for _ in range(vectors)]) as state:
            each_tap(t, state, lambda tap, x: _accumulate(t, tile, tap, x, vectors), once=tile.point)
            state.pointers[1] = t.ptr_add(state.pointers[1], I64("%plane"))
            state.integers[0] = t.following(state.integers[0])
            state.again = t.icmp("slt", state.integers[0], stop)
        last = t.icmp("sge", state.integers[0], I64("%channels"))
        _store_sums(t, tile, state.vectors, vectors, first, last)
        piece.integers[:], piece.pointers[:] = state.integers, state.pointers
        t.new_block()
        piece.again = t.not_(last)
    return t.function(tile_signature(tile, vectors), linkage="internal")


def _accumulate(t: VectorBuilder, tile: PixelTile, state: Carried, x: Ptr, vectors: int) -> None:
    """Add one tap of one channel."""
    w = state.pointers[0]
    seen = [t.load(t.ptr_add(x, t.bytes * j)) for j in range(vectors)]
    sums = with_products(t, tile, w, seen, state.vectors)
    state.pointers[0] = t.ptr_add(w, 4 * tile.filters)
    state.vectors[:] = sums


def _store_sums(t: VectorBuilder, tile: PixelTile, sums: Sequence[Vec], vectors: int, first: I1, last: I1) -> None:
    """Add a piece to the sums before it, and activate them after the last piece. A single piece reads no sums."""
    steps = tile.epilogue.in_registers
    rows = [t.ptr_add(Ptr("%y"), t.mul(I64("%pitch"), i)) for i in range(tile.filters)]
    spots = [t.ptr_add(row, t.bytes * j) for row in rows for j in range(vectors)]

    def single() -> None:
        for spot, piece in zip(spots, sums, strict=True):
            t.store(activate(t, steps, piece), spot)

    def added() -> None:
        for spot, piece in zip(spots, sums, strict=True):
            total = t.select_vec(first, piece, t.fadd(t.load(spot), piece))
            done = activate(t, steps, total)
            t.store(total if done == total else t.select_vec(last, done, total), spot)

    t.either(t.and_(first, last), single, added)


RESIDUAL = ("r_image", "r_channel", "r_row", "r_column")
"""Strides of a residual in bytes."""
ZERO_STUFFING = ("spread_rows", "spread_columns")
"""The distances of two pixels where zeros are between them."""
OF_A_RUN = ("w_filter", "w_channel", "w_tap", "packed_w")
OF_A_BIAS = ("b_filter", "packed_b")
"""Strides of filters and of a bias that only a run knows, and where they are packed."""


@dataclass(frozen=True, slots=True)
class DirectArgs(WindowArgs):
    """Channels and filters are those of one group, which `parts` tiles share, `part` register tiles each.

    Filters of a run have strides, in bytes, and are packed in the workspace.
    """

    x: Ptr
    w: Ptr
    b: Ptr
    r: Ptr
    y: Ptr
    groups: I64
    channels: I64
    filters: I64
    image_step: I64
    group_step: I64
    channel_step: I64
    parts: I64
    part: I64
    spread_rows: I64
    spread_columns: I64
    r_image: I64
    r_channel: I64
    r_row: I64
    r_column: I64
    w_filter: I64
    w_channel: I64
    w_tap: I64
    b_filter: I64
    taps: Region
    """Offsets of taps."""
    packed_w: Region
    packed_b: Region
    results: Region
    """Results of one register tile."""
    seen: Region
    """The patch of a block."""


def arguments(tile: PixelTile) -> Arguments[DirectArgs]:
    """The arguments with or without bias, residual and zero-stuffing."""
    absent = () if tile.zero_stuffed else ZERO_STUFFING
    if not tile.packs:
        absent = (*absent, *OF_A_RUN, *OF_A_BIAS)
    elif not tile.epilogue.bias:
        absent = (*absent, *OF_A_BIAS)
    return arguments_of(DirectArgs, tile.epilogue, *RESIDUAL, without=absent)


def direct_code(tile: PixelTile) -> KernelCode:
    """The kernel."""
    pack = zero_stuff(tile.device) if tile.zero_stuffed else pack_phase(tile.device)
    shared = [finish_row(tile.device, tile.epilogue), pack, register_tiles(tile.summing)]
    return assemble("conv", [_kernel(tile)], shared)


@dataclass(frozen=True, slots=True)
class _Block:
    """A block of output pixels: where it is, its rows and columns, and the patch that it reads."""

    image: I64
    group: I64
    first_row: I64
    first_column: I64
    rows: I64
    columns: I64
    length: I64
    """Columns from the first pixel to the last, those between rows included."""
    full: I1
    """Whether the length is whole vectors."""
    x: Ptr
    plane: I64


def _kernel(tile: PixelTile) -> Function:
    """The tiles from `begin` to before `end`."""
    t = VectorBuilder(tile.device)
    declared = arguments(tile)
    a = declared.load(t, WORDS, SCRATCH)
    if tile.packs:
        a = _with_packed_filters(t, tile, a)
    writer = writer_of(t, declared, tile.epilogue, a.y)
    of = patch_layout(t, a)
    run_step = t.mul(t.ceil_div(of.run, t.lanes), t.bytes)
    write_tap_offsets(t, a, of, a.taps)
    register_tiles = t.ceil_div(a.filters, tile.filters)
    with t.loop(BEGIN, END) as number:
        part, block_number = t.srem(number, a.parts), t.sdiv(number, a.parts)
        block = _seen_block(t, tile, a, of, block_number)
        in_place = FALSE if writer is not None else _in_place(t, tile, a, of, block)
        stop = t.smin(register_tiles, t.mul(t.add(part, 1), a.part))
        with t.loop(t.mul(part, a.part), stop) as filter_tile:
            packed = t.add(t.mul(block.group, register_tiles), filter_tile)
            if writer is None:
                _filters(t, tile, a, of, block, filter_tile, packed, in_place, run_step)
            else:
                _filters_to_rows(t, tile, a, of, block, filter_tile, packed, run_step, writer)
    return kernel_function(t)


def _with_packed_filters(t: VectorBuilder, tile: PixelTile, a: DirectArgs) -> DirectArgs:
    """The arguments with the filters and the bias of a run in the workspace, which the first call of a step packs."""
    count, taps = t.ceil_div(a.filters, tile.filters), t.mul(a.window_rows, a.window_columns)
    apart, line = t.mul(t.mul(a.channels, taps), 4 * tile.filters), 4 * tile.filters
    each = t.mul(count, tile.filters)
    with t.when(once_for(t, SCRATCH, 1, I64("0"))), t.loop(0, t.mul(a.groups, each)) as lane:
        group, one = t.sdiv(lane, each), t.srem(lane, each)
        # A register tile has whole vectors of filters: those after the last one are 0.
        is_there = t.icmp("slt", one, a.filters)
        number = t.add(t.mul(group, a.filters), one)
        packed, within = t.sdiv(lane, tile.filters), t.mul(t.srem(lane, tile.filters), 4)
        source = t.ptr_add(a.w, t.mul(number, a.w_filter))
        target = t.ptr_add(a.packed_w, t.add(t.mul(packed, apart), within))
        with t.loop(0, a.channels) as channel:
            here = t.ptr_add(source, t.mul(channel, a.w_channel))
            onto = t.ptr_add(target, t.mul(t.mul(channel, taps), line))
            with t.when(is_there), t.loop(0, taps) as tap:
                t.store_f32(t.load_f32(t.ptr_add(here, t.mul(tap, a.w_tap))), t.ptr_add(onto, t.mul(tap, line)))
            with t.unless(is_there), t.loop(0, taps) as tap:
                t.store_f32(F32("0.0"), t.ptr_add(onto, t.mul(tap, line)))
        if tile.epilogue.bias:
            onto = t.ptr_add(a.packed_b, t.mul(lane, 4))
            with t.when(is_there):
                t.store_f32(t.load_f32(t.ptr_add(a.b, t.mul(number, a.b_filter))), onto)
            with t.unless(is_there):
                t.store_f32(F32("0.0"), onto)
    return replace(a, w=a.packed_w, b=a.packed_b)


def _seen_block(t: VectorBuilder, tile: PixelTile, a: DirectArgs, of: PatchLayout, number: I64) -> _Block:
    """A block by its number, after its patch was packed."""
    column_block, left = t.srem(number, a.column_blocks), t.sdiv(number, a.column_blocks)
    row_block, left = t.srem(left, a.row_blocks), t.sdiv(left, a.row_blocks)
    group, image = t.srem(left, a.groups), t.sdiv(left, a.groups)
    first_row, first_column = t.mul(row_block, a.block_rows), t.mul(column_block, a.block_columns)
    source = t.ptr_add(t.ptr_add(a.x, t.mul(image, a.image_step)), t.mul(group, a.group_step))
    rows = t.smin(a.block_rows, t.sub(a.out_height, first_row))
    columns = t.smin(a.block_columns, t.sub(a.out_width, first_column))
    length = t.add(t.mul(t.sub(rows, 1), of.pitch), columns)
    full = t.icmp("eq", t.srem(length, t.lanes), 0)
    fresh = once_for(t, SCRATCH, 0, number)
    x: Ptr = a.seen
    plane = of.channel
    if tile.point and not tile.zero_stuffed:
        # One row of whole vectors is read where it is: the distance of two pixels is 4 only without padding.
        distance = t.mul(t.mul(a.column_step, a.stride_columns), t.add(a.before, 1))
        alone = t.and_(full, t.icmp("eq", a.out_height, 1))
        there = t.and_(alone, t.icmp("eq", distance, 4))
        x = t.select_ptr(there, t.ptr_add(source, t.mul(first_column, 4)), a.seen)
        plane = t.select_int(there, a.channel_step, of.channel)
        fresh = t.and_(fresh, t.not_(there))
    block = _Block(image, group, first_row, first_column, rows, columns, length, full, x, plane)
    with t.when(fresh), t.loop(0, a.channels) as channel:
        _pack(t, tile, a, of, block, source, channel)
    return block


def _pack(
    t: VectorBuilder, tile: PixelTile, a: DirectArgs, of: PatchLayout, block: _Block, source: Ptr, channel: I64
) -> None:
    """Pack what a block sees of one channel."""
    onto, here = t.ptr_add(a.seen, t.mul(channel, of.channel)), t.ptr_add(source, t.mul(channel, a.channel_step))
    if tile.zero_stuffed:
        write_zero_stuffed(t, a, of, here, onto, block.first_row, block.first_column, a.spread_rows, a.spread_columns)
        return
    # The next channel is far from this one: the hardware does not prefetch it.
    skipped = t.mul(t.mul(block.first_row, a.stride_rows), a.row_step)
    skipped = t.add(skipped, t.mul(t.mul(block.first_column, a.stride_columns), a.column_step))
    area = t.mul(t.mul(of.rows, a.stride_rows), t.mul(of.pitch, a.stride_columns))
    prefetch_share(t, t.ptr_add(t.ptr_add(here, a.channel_step), skipped), t.mul(area, 4), 0, 1)
    write_patch(t, a, of, here, onto, block.first_row, block.first_column)


def _in_place(t: VectorBuilder, tile: PixelTile, a: DirectArgs, of: PatchLayout, block: _Block) -> I1:
    """Whether a block is one run in the result too: it has one row, or all columns and none between its rows."""
    alone = t.icmp("eq", block.rows, 1)
    whole = t.and_(t.icmp("eq", of.pitch, block.columns), t.icmp("eq", a.column_blocks, 1))
    run_on = t.or_(alone, whole)
    if tile.epilogue.residual:
        level = t.icmp("eq", a.r_row, t.mul(a.out_width, a.r_column))
        run_on = t.and_(run_on, t.or_(alone, level))
        # Sums must not overwrite the residual before it is added.
        run_on = t.and_(run_on, t.ptr_ne(a.r, a.y))
    return t.and_(run_on, block.full)


def _filters(
    t: VectorBuilder,
    tile: PixelTile,
    a: DirectArgs,
    of: PatchLayout,
    block: _Block,
    filter_tile: I64,
    packed: I64,
    in_place: I1,
    run_step: I64,
) -> None:
    """Multiply a block with the filters of one register tile, and finish its results."""
    area = t.mul(a.out_height, a.out_width)
    first = t.mul(filter_tile, tile.filters)
    count = t.smin(tile.filters, t.sub(a.filters, first))
    channel = t.add(t.mul(t.add(t.mul(block.image, a.groups), block.group), a.filters), first)
    corner = t.add(t.mul(block.first_row, a.out_width), block.first_column)
    target = t.ptr_add(a.y, t.mul(t.add(t.mul(channel, area), corner), 4))
    direct = t.and_(in_place, t.icmp("eq", count, tile.filters))
    onto = t.select_ptr(direct, target, a.results)
    step = t.select_int(direct, t.mul(area, 4), run_step)
    _run(t, tile.summing, a, of, block, packed, onto, step)
    residual = NULL
    finish = finish_signature(tile.epilogue)
    if tile.epilogue.residual:
        own = t.mul(t.add(t.mul(block.group, a.filters), first), a.r_channel)
        corner = t.add(t.mul(block.first_row, a.r_row), t.mul(block.first_column, a.r_column))
        residual = t.ptr_add(t.ptr_add(a.r, t.mul(block.image, a.r_image)), t.add(own, corner))
        with t.when(direct), t.loop(0, count) as row:
            y, r = t.ptr_add(onto, t.mul(row, step)), t.ptr_add(residual, t.mul(row, a.r_channel))
            t.call(finish, y, r, a.r_column, block.length)
    elif tile.epilogue.finishes:
        with t.loop(0, count) as row:
            t.call(finish, t.ptr_add(onto, t.mul(row, step)), block.length)
    with t.unless(direct), t.loop(0, count) as row, t.loop(0, block.rows) as line:
        here = t.ptr_add(a.results, t.add(t.mul(row, run_step), t.mul(line, t.mul(of.pitch, 4))))
        there = t.ptr_add(target, t.mul(t.add(t.mul(row, area), t.mul(line, a.out_width)), 4))
        if tile.epilogue.residual:
            r = t.ptr_add(residual, t.add(t.mul(row, a.r_channel), t.mul(line, a.r_row)))
            t.call(finish, here, r, a.r_column, block.columns)
        with t.steps(0, block.columns, t.lanes) as column:
            by = t.mul(column, 4)
            mask = t.lanes_within(column, block.columns)
            t.store_masked(mask, t.load(t.ptr_add(here, by)), t.ptr_add(there, by))


def _filters_to_rows(
    t: VectorBuilder,
    tile: PixelTile,
    a: DirectArgs,
    of: PatchLayout,
    block: _Block,
    filter_tile: I64,
    packed: I64,
    run_step: I64,
    writer: RowWriter,
) -> None:
    """Multiply a block with the filters of one register tile; steps on rows read its results in the workspace."""
    first = t.mul(filter_tile, tile.filters)
    count = t.smin(tile.filters, t.sub(a.filters, first))
    channel = t.add(t.mul(block.group, a.filters), first)
    _run(t, tile.summing, a, of, block, packed, a.results, run_step)
    if tile.epilogue.finishes and not tile.epilogue.residual:
        with t.loop(0, count) as row:
            t.call(finish_signature(tile.epilogue), t.ptr_add(a.results, t.mul(row, run_step)), block.length)
    with t.loop(0, block.rows) as line:
        here = t.ptr_add(a.results, t.mul(line, t.mul(of.pitch, 4)))
        down = t.add(block.first_row, line)
        if tile.epilogue.residual:
            corner = t.add(t.mul(down, a.r_row), t.mul(block.first_column, a.r_column))
            r = t.ptr_add(t.ptr_add(a.r, t.mul(block.image, a.r_image)), t.add(t.mul(channel, a.r_channel), corner))
            with t.loop(0, count) as row:
                y, other = t.ptr_add(here, t.mul(row, run_step)), t.ptr_add(r, t.mul(row, a.r_channel))
                t.call(finish_signature(tile.epilogue), y, other, a.r_column, block.columns)
        at = {"image": block.image, "channel": channel, "row": down, "column": block.first_column}
        writer.write(t, here, run_step, count, block.columns, at)


def _run(
    t: VectorBuilder,
    tile: PixelTile,
    a: DirectArgs,
    of: PatchLayout,
    block: _Block,
    packed: I64,
    onto: Ptr,
    step: Int,
) -> None:
    """The register tiles along a run of columns, as equal in width as they can be.

    Meanwhile the weights of the next register tile are prefetched.
    """
    size = t.mul(t.mul(a.channels, of.taps), 4 * tile.filters)
    weights = t.ptr_add(a.w, t.mul(packed, size))
    bias = t.ptr_add(a.b, t.mul(packed, 4 * tile.filters)) if tile.epilogue.bias else NULL
    vectors = t.ceil_div(block.length, t.lanes)
    count = t.ceil_div(vectors, tile.vectors)
    narrow, wider = t.sdiv(vectors, count), t.srem(vectors, count)
    with t.loop(0, count) as number:
        width = t.add(narrow, t.zext(t.icmp("slt", number, wider)))
        start = t.add(t.mul(number, narrow), t.smin(number, wider))
        offset = t.mul(start, t.bytes)
        x, y = t.ptr_add(block.x, offset), t.ptr_add(onto, offset)
        prefetch_share(t, t.ptr_add(weights, size), size, number, count)
        t.call(tile_signature(tile), weights, x, block.plane, a.taps, of.taps, a.channels, y, step, bias, width)


def direct(conv: Convolution, problem: ConvProblem, device: CpuDevice) -> Candidates:
    """The kernel that serves every convolution."""
    if problem.is_level:
        problem = replace(problem, geometry=problem.geometry.flat())
    tile = PixelTile.of(device, problem.filters, conv.epilogue, problem.geometry.taps == 1)
    return [Candidate(packed(conv, tile.filters), Direct(problem, tile), lambda: direct_code(tile), "direct")]


@dataclass(frozen=True, slots=True)
class Direct(ConvTiler):
    """How the work is tiled."""

    problem: ConvProblem
    tile: PixelTile
    spread: tuple[int, ...] = ()
    """Of a transposed convolution: the distances of two pixels down and across, zeros between them."""
    strides: tuple[tuple[str, int], ...] = ()
    """Of filters and a bias that only a run knows, by name, in bytes."""

    def effort(self, of: ConvProblem) -> Effort:
        """What each image and group costs."""
        return pixels_effort(of, self.tile)

    def tiling(self, of: ConvProblem) -> Tiling:
        """The tiling, also of sizes that are symbols."""
        tile, geometry, lanes = self.tile, of.geometry, self.tile.device.lanes
        blocks = geometry.blocks(of.channels, tile.device, tile.vectors)
        work = blocks.rows * blocks.columns * of.sums * tile.filters
        register_tiles = -(-of.filters // tile.filters)
        part = max(1, min(register_tiles, BLOCKS.direct.part_work // max(1, work))) if isinstance(work, int) else 1
        parts = -(-register_tiles // part)
        laid = arguments(tile).laid_out(
            geometry.sizes_by_name(blocks)
            | of.sizes_by_name(*RESIDUAL)
            | {"parts": parts, "part": part}
            | dict(zip(ZERO_STUFFING, self.spread, strict=False))
            | dict(self.strides),
            {
                **self._packed(of.groups * register_tiles * tile.filters, of.sums),
                "taps": 8 * geometry.taps, "results": 4 * tile.filters * (geometry.run(blocks) + lanes),
                "seen": 4 * (geometry.seen(blocks, of.channels) + 2 * lanes), **row_regions(tile.epilogue),
            },
        )  # fmt: skip
        tiles = of.images * of.groups * blocks.down * blocks.across * parts
        # An FMA multiplies a vector, and two are done at once.
        return Tiling(laid.sizes, laid.scratch, tiles, work * part // (2 * lanes) + 1)

    def _packed(self, filters: int, sums: int) -> dict[str, Size]:
        """The parts of the workspace for filters and a bias of a run."""
        if not self.tile.packs:
            return {}
        bias: dict[str, Size] = {"packed_b": 4 * filters} if self.tile.epilogue.bias else {}
        return {"packed_w": 4 * filters * sums, **bias}


def direct_of_a_run(
    conv: Convolution, problem: ConvProblem, device: CpuDevice, locations: TensorLocations
) -> Candidate | Refused:
    """The kernel, where taps of a filter are equally far apart, and pixels that it packs are read often."""
    if problem.filters < LIMITS.of_a_run.fewest_filters:
        fewest = f"at least {LIMITS.of_a_run.fewest_filters}"
        return Refused("filters_pay_for_packed_pixels", f"{problem.filters} filters of a group", fewest)
    out, taps = product(problem.geometry.out), problem.geometry.taps
    if isinstance(out, int) and out < taps:
        return Refused("results_fill_lanes", f"{out} results, {taps} taps", "as many results as taps")
    strides = _strides(conv, locations)
    if isinstance(strides, Refused):
        return strides
    if problem.is_level:
        problem = replace(problem, geometry=problem.geometry.flat())
    plain = PixelTile.of(device, problem.filters, conv.epilogue, problem.geometry.taps == 1)
    tile = replace(plain, packs=True)
    return Candidate(
        pointers(conv, conv.w, conv.b), Direct(problem, tile, (), strides), lambda: direct_code(tile), "direct"
    )


def _strides(conv: Convolution, locations: TensorLocations) -> tuple[tuple[str, int], ...] | Refused:
    """Strides of the filters and of the bias in bytes, by the names of the kernel's arguments."""
    apart = _known_strides(conv.w, locations)
    window = conv.w.shape[2:]
    if apart is None or (len(window) == 2 and window[0] != 1 and apart[2] != apart[3] * window[1]):
        return Refused("taps_are_equidistant", f"strides {locations(conv.w).strides}")
    named = {"w_filter": apart[0], "w_channel": apart[1], "w_tap": apart[-1]}
    if conv.b is not None:
        of_bias = _known_strides(conv.b, locations)
        if of_bias is None:
            return Refused("bias_has_known_strides", f"strides {locations(conv.b).strides}")
        # A bias is [filters], with as many axes of size 1 after it as the image has.
        named["b_filter"] = of_bias[0]
    return tuple(named.items())


def _known_strides(value: Value, locations: TensorLocations) -> tuple[int, ...] | None:
    strides = locations(value).strides
    known = tuple([step for step in strides if isinstance(step, int)])
    return known if len(known) == len(strides) and value.tensor.is_static else None
