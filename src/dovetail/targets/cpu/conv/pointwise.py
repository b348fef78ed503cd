"""1×1 convolution as a matrix product that reads the image where it is.

A tile is some filters at some bands of pixels, each a few vectors. The channels are taken some at a time, so that what
a band sees of them stays in L1 while the filters go over it. The band whose last vector is not full is copied, and its
results go through the workspace.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from dovetail.codegen.llvm.arguments import Region
from dovetail.codegen.llvm.function import Function, Parameter, Signature
from dovetail.codegen.llvm.handles import I1, I64, NULL, TRUE, Int, Ptr, Vec
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
from dovetail.codegen.llvm.vector import ZERO, VectorBuilder
from dovetail.dataclass import dataclass
from dovetail.kernels.choice import Refused
from dovetail.kernels.device import CpuDevice
from dovetail.kernels.problems.convolution import Convolution, ConvProblem, known
from dovetail.kernels.problems.epilogue import Epilogue
from dovetail.kernels.spec import Tiling
from dovetail.targets.cpu.conv.candidate import LEVEL, Candidate, Candidates, ConvTiler, Effort, between
from dovetail.targets.cpu.conv.epilogue import (
    activate,
    arguments_of,
    finish_row,
    finish_signature,
    row_regions,
    writer_of,
)
from dovetail.targets.cpu.conv.packing import packed
from dovetail.targets.cpu.conv.pixels_in_lanes import PixelTile, pixels_effort, with_products
from dovetail.targets.cpu.conv.policy import BLOCKS, LIMITS, shared_parts
from dovetail.targets.cpu.row_epilogue import RowWriter


@dataclass(frozen=True, slots=True)
class PointwiseArgs:
    """Channels and filters are those of one group. A part of pixels is some bands, one of filters some register tiles;
    `depth` channels go together."""

    x: Ptr
    w: Ptr
    b: Ptr
    r: Ptr
    y: Ptr
    pixels: I64
    groups: I64
    channels: I64
    filters: I64
    image_step: I64
    group_step: I64
    channel_step: I64
    pixel_parts: I64
    pixel_part: I64
    filter_parts: I64
    filter_part: I64
    depth: I64
    r_image: I64
    sums: Region
    """Sums of a part of the filters at the last band."""
    panel: Region
    """What the last band sees."""


def arguments(epilogue: Epilogue) -> Arguments[PointwiseArgs]:
    return arguments_of(PointwiseArgs, epilogue, "r_image")


def pointwise_code(tile: PixelTile) -> KernelCode:
    """The kernel."""
    members = {vectors: register_tile(tile, vectors) for vectors in range(1, tile.vectors + 1)}
    finish = finish_row(tile.device, _finish(tile))
    return assemble("point_conv", [_kernel(tile)], [finish, one_of(_signature(tile).name, members)])


def _finish(tile: PixelTile) -> Epilogue:
    """What is done to finished rows: the activation alone, since sums begin with the residual."""
    return Epilogue(tile.epilogue.steps)


def _signature(tile: PixelTile, vectors: int | None = None) -> Signature:
    """One register tile, or with `vectors` None the function that takes their number."""
    name = f"point_tile.{tile.device.lanes}.{tile.filters}.{tile.vectors}{tile.epilogue.marks}"
    residual = tile.epilogue.residual
    # With a residual, sums begin with what `from` points to: the residual, or what was written before.
    begin = (Parameter("ptr", "from"), Parameter("i64", "from_pitch")) if residual else ()
    which = () if vectors is not None else (Parameter("i64", "which"),)
    return Signature(
        name if vectors is None else f"{name}.{vectors}",
        (
            Parameter("ptr", "w", "noalias readonly"), Parameter("ptr", "x", "noalias readonly"),
            Parameter("i64", "plane"), Parameter("i64", "channels"), Parameter("i64", "ahead"),
            Parameter("ptr", "y", "" if residual else "noalias"), Parameter("i64", "pitch"),
            Parameter("ptr", "bias", "noalias readonly"), Parameter("i1", "first"), Parameter("i1", "last"),
            *begin, *which,
        ),
    )  # fmt: skip


def register_tile(tile: PixelTile, vectors: int) -> Function:
    """Some filters by some vectors of pixels, summed over some channels and added to what is there, or to the bias and
    the residual."""
    t = VectorBuilder(tile.device)
    # The lines of results are cold.
    for i in range(tile.filters):
        row = t.ptr_add(Ptr("%y"), t.mul(I64("%pitch"), i))
        for j in range(vectors):
            t.prefetch(t.ptr_add(row, t.bytes * j), for_write=True)
        if tile.epilogue.residual:
            row = t.ptr_add(Ptr("%from"), t.mul(I64("%from_pitch"), i))
            for j in range(vectors):
                t.prefetch(t.ptr_add(row, t.bytes * j))
    with t.repeat([0], [Ptr("%w"), Ptr("%x")], [ZERO] * (tile.filters * vectors)) as state:
        w, x = state.pointers
        seen = [t.load(t.ptr_add(x, t.bytes * j)) for j in range(vectors)]
        # What the next band sees is strided: the hardware does not prefetch it.
        after = t.ptr_add(x, I64("%ahead"))
        for j in range(vectors):
            t.prefetch(t.ptr_add(after, t.bytes * j), level=2)
        state.vectors[:] = with_products(t, tile, w, seen, state.vectors)
        state.pointers[:] = [t.ptr_add(w, 4 * tile.filters), t.ptr_add(x, I64("%plane"))]
        state.integers[0] = t.following(state.integers[0])
        state.again = t.icmp("slt", state.integers[0], I64("%channels"))
    _store_sums(t, tile, state.vectors, vectors)
    return t.function(_signature(tile, vectors), linkage="internal")


def _store_sums(t: VectorBuilder, tile: PixelTile, sums: Sequence[Vec], vectors: int) -> None:
    """Add some channels to what the sums begin with, and activate them after the last channel."""
    if tile.epilogue.residual:
        _write_sums(t, tile, sums, vectors, fresh=False)
        return
    # The lines of results are cold: the first channels do not wait for them.
    fresh, added = (partial(_write_sums, t, tile, sums, vectors, fresh=fresh) for fresh in (True, False))
    t.either(I1("%first"), fresh, added)


def _write_sums(t: VectorBuilder, tile: PixelTile, sums: Sequence[Vec], vectors: int, *, fresh: bool) -> None:
    """Write sums that begin with the bias, or, unless they are fresh, with what is in memory."""
    first, last, residual = I1("%first"), I1("%last"), tile.epilogue.residual
    for i in range(tile.filters):
        row = t.ptr_add(Ptr("%y"), t.mul(I64("%pitch"), i))
        start = ZERO
        if tile.epilogue.bias and (fresh or residual):
            start = t.load_splat(t.ptr_add(Ptr("%bias"), 4 * i))
        if residual:
            start = t.select_vec(first, start, ZERO)
        for j in range(vectors):
            spot, own = t.ptr_add(row, t.bytes * j), sums[i * vectors + j]
            if residual:
                there = t.ptr_add(t.ptr_add(Ptr("%from"), t.mul(I64("%from_pitch"), i)), t.bytes * j)
                before = t.fadd(t.load(there), start)
            else:
                before = start if fresh else t.load(spot)
            total = t.fadd(before, own)
            done = activate(t, tile.epilogue.in_registers, total)
            t.store(total if done == total else t.select_vec(last, done, total), spot)


def _copy_row(t: VectorBuilder, source: Ptr, target: Ptr, width: I64, count: I64) -> None:
    """Copy `width` vectors, zeros after the first `count` elements."""
    with t.loop(0, width) as vector:
        by = t.mul(vector, t.bytes)
        some = t.lanes_within(t.mul(vector, t.lanes), count)
        t.store(t.load_masked(some, t.ptr_add(source, by)), t.ptr_add(target, by))


@dataclass(frozen=True, slots=True)
class _Band:
    """A band of pixels: image and group, its vectors, first pixel and pixels, whether its last vector is not full, and
    what it sees."""

    image: I64
    group: I64
    image_group: I64
    width: I64
    start: I64
    count: I64
    ragged: I1
    x: Ptr
    plane: I64


@dataclass(frozen=True, slots=True)
class _Rows:
    """The results of all bands of a tile, which steps on rows read: their first pixel, how many, and bytes of a row."""

    writer: RowWriter
    sums: Ptr
    start: I64
    count: I64
    pitch: I64

    @staticmethod
    def of(
        t: VectorBuilder,
        tile: PixelTile,
        a: PointwiseArgs,
        writer: RowWriter | None,
        narrow: I64,
        wider: I64,
        first: I64,
        last: I64,
    ) -> _Rows | None:
        if writer is None:
            return None
        start, stop = [t.mul(t.add(t.mul(n, narrow), t.smin(n, wider)), t.lanes) for n in (first, last)]
        pitch = t.mul(a.pixel_part, t.bytes * tile.vectors)
        return _Rows(writer, a.sums, start, t.sub(t.smin(a.pixels, stop), start), pitch)

    def at(self, t: VectorBuilder, tile: PixelTile, filter_tile: I64, pixel: I64) -> Ptr:
        """The first filter of a register tile, counted from the first one of the tile, at a pixel."""
        row = t.ptr_add(self.sums, t.mul(t.mul(filter_tile, tile.filters), self.pitch))
        return t.ptr_add(row, t.mul(t.sub(pixel, self.start), 4))


@dataclass(frozen=True, slots=True)
class _Piece:
    """Some of the channels: those before them, how many, and whether they are the first and the last."""

    before: I64
    some: I64
    first: I1
    last: I1
    x: Ptr


def _kernel(tile: PixelTile) -> Function:
    """The tiles from `begin` to before `end`."""
    t = VectorBuilder(tile.device)
    declared = arguments(tile.epilogue)
    a = declared.load(t, WORDS, SCRATCH)
    writer = writer_of(t, declared, tile.epilogue, a.y)
    vectors = t.ceil_div(a.pixels, t.lanes)
    bands = t.ceil_div(vectors, tile.vectors)
    narrow, wider = t.sdiv(vectors, bands), t.srem(vectors, bands)
    filter_tiles = t.ceil_div(a.filters, tile.filters)
    with t.loop(BEGIN, END) as number:
        # The worker that takes the next tile has the weights of the last one in its cache.
        pixel_part, left = t.srem(number, a.pixel_parts), t.sdiv(number, a.pixel_parts)
        filter_part, image_group = t.srem(left, a.filter_parts), t.sdiv(left, a.filter_parts)
        group, image = t.srem(image_group, a.groups), t.sdiv(image_group, a.groups)
        source = t.ptr_add(t.ptr_add(a.x, t.mul(image, a.image_step)), t.mul(group, a.group_step))
        first_tile = t.mul(filter_part, a.filter_part)
        last_tile = t.smin(filter_tiles, t.add(first_tile, a.filter_part))
        first_band = t.mul(pixel_part, a.pixel_part)
        last_band = t.smin(bands, t.add(first_band, a.pixel_part))
        rows = _Rows.of(t, tile, a, writer, narrow, wider, first_band, last_band)
        with t.loop(first_band, last_band) as one:
            width = t.add(narrow, t.zext(t.icmp("slt", one, wider)))
            start = t.mul(t.add(t.mul(one, narrow), t.smin(one, wider)), t.lanes)
            count = t.smin(t.mul(width, t.lanes), t.sub(a.pixels, start))
            here = t.ptr_add(source, t.mul(start, 4))
            ragged = t.icmp("slt", count, t.mul(width, t.lanes))
            x, plane = _seen(t, tile, a, here, width, count, ragged)
            band = _Band(image, group, image_group, width, start, count, ragged, x, plane)
            with t.loop(0, t.ceil_div(a.channels, a.depth)) as number_of_piece:
                piece = _piece(t, a, band, number_of_piece)
                with t.loop(first_tile, last_tile) as filter_tile:
                    packed = t.add(t.mul(group, filter_tiles), filter_tile)
                    _filters(t, tile, a, band, piece, filter_tile, first_tile, packed, rows)
        if rows is not None:
            _write_rows(t, tile, a, rows, image, group, first_tile)
    return kernel_function(t)


def _write_rows(
    t: VectorBuilder, tile: PixelTile, a: PointwiseArgs, rows: _Rows, image: I64, group: I64, first_tile: I64
) -> None:
    """Apply steps on rows to all results of a tile."""
    first = t.mul(first_tile, tile.filters)
    count = t.smin(t.mul(a.filter_part, tile.filters), t.sub(a.filters, first))
    channel = t.add(t.mul(group, a.filters), first)
    corner = {"image": image, "channel": channel, "column": rows.start}
    rows.writer.write(t, rows.sums, rows.pitch, count, rows.count, corner)


def _seen(
    t: VectorBuilder, tile: PixelTile, a: PointwiseArgs, here: Ptr, width: I64, count: I64, ragged: I1
) -> tuple[Ptr, I64]:
    """What a band sees, and the distance of its channels: a copy where the last vector is not full."""
    wide = t.bytes * tile.vectors
    with t.when(ragged), t.loop(0, a.channels) as channel:
        source, target = t.ptr_add(here, t.mul(channel, a.channel_step)), t.ptr_add(a.panel, t.mul(channel, wide))
        _copy_row(t, source, target, width, count)
    return t.select_ptr(ragged, a.panel, here), t.select_int(ragged, wide, a.channel_step)


def _piece(t: VectorBuilder, a: PointwiseArgs, band: _Band, number: I64) -> _Piece:
    before = t.mul(number, a.depth)
    some = t.smin(a.depth, t.sub(a.channels, before))
    first = t.icmp("eq", number, 0)
    last = t.icmp("eq", t.add(before, some), a.channels)
    return _Piece(before, some, first, last, t.ptr_add(band.x, t.mul(before, band.plane)))


def _filters(
    t: VectorBuilder,
    tile: PixelTile,
    a: PointwiseArgs,
    band: _Band,
    piece: _Piece,
    filter_tile: I64,
    first_tile: I64,
    packed: I64,
    whole: _Rows | None,
) -> None:
    """Multiply some channels of a band with the filters of one register tile."""
    rows, wide, area, epilogue = tile.filters, t.bytes * tile.vectors, t.mul(a.pixels, 4), tile.epilogue
    first_filter = t.mul(filter_tile, rows)
    own = t.smin(rows, t.sub(a.filters, first_filter))
    # Steps on rows read all results in the workspace.
    through = TRUE if whole is not None else t.or_(band.ragged, t.icmp("slt", own, rows))
    channel = t.add(t.mul(band.image_group, a.filters), first_filter)
    target = t.ptr_add(a.y, t.add(t.mul(channel, area), t.mul(band.start, 4)))
    pitch: Int = wide
    if whole is None:
        spare = t.ptr_add(a.sums, t.mul(t.sub(filter_tile, first_tile), rows * wide))
    else:
        spare, pitch = whole.at(t, tile, t.sub(filter_tile, first_tile), band.start), whole.pitch
    onto = t.select_ptr(through, spare, target)
    step = t.select_int(through, pitch, area)
    weights = t.ptr_add(a.w, t.mul(t.add(t.mul(packed, a.channels), piece.before), 4 * rows))
    bias = t.ptr_add(a.b, t.mul(packed, 4 * rows)) if epilogue.bias else NULL
    ahead = t.select_int(t.icmp("eq", filter_tile, first_tile), t.mul(band.width, t.bytes), 0)
    begin: tuple[Ptr | I64, ...] = ()
    if epilogue.residual:
        row = t.add(t.mul(t.add(t.mul(band.group, a.filters), first_filter), area), t.mul(band.start, 4))
        residual = t.ptr_add(t.ptr_add(a.r, t.mul(band.image, a.r_image)), row)
        with t.when(t.and_(piece.first, through)), t.loop(0, own) as one:
            source, spot = t.ptr_add(residual, t.mul(one, area)), t.ptr_add(spare, t.mul(one, pitch))
            _copy_row(t, source, spot, band.width, band.count)
        begins = t.and_(piece.first, t.not_(through))
        begin = (t.select_ptr(begins, residual, onto), t.select_int(begins, area, step))
    t.call(
        _signature(tile), weights, piece.x, band.plane, piece.some, ahead, onto, step, bias, piece.first, piece.last,
        *begin, band.width,
    )  # fmt: skip
    if epilogue.finishes:
        with t.when(piece.last), t.loop(0, own) as one:
            t.call(finish_signature(_finish(tile)), t.ptr_add(onto, t.mul(one, step)), band.count)
    if whole is not None:
        return
    with t.when(t.and_(piece.last, through)), t.loop(0, own) as one:
        source, spot = t.ptr_add(spare, t.mul(one, wide)), t.ptr_add(target, t.mul(one, area))
        with t.loop(0, band.width) as vector:
            by = t.mul(vector, t.bytes)
            mask = t.lanes_within(t.mul(vector, t.lanes), band.count)
            t.store_masked(mask, t.load(t.ptr_add(source, by)), t.ptr_add(spot, by))


def pointwise(conv: Convolution, problem: ConvProblem, device: CpuDevice) -> Candidates:
    """The kernel of a convolution whose pixels are contiguous, one row of them, and see a pixel each."""
    flat = replace(problem, geometry=problem.geometry.flat())
    of = flat.geometry
    if not of.is_point or of.sizes[0] != 1 or of.steps[1] != 4:
        return Refused("pixels_of_a_1x1_window_are_contiguous", f"window {of.window}, strides {of.strides}")
    if not problem.is_level:
        return LEVEL
    tile = PixelTile.of(device, problem.filters, conv.epilogue, True)
    return [Candidate(packed(conv, tile.filters), Pointwise(flat, tile), lambda: pointwise_code(tile), "pointwise")]


@dataclass(frozen=True, slots=True)
class Pointwise(ConvTiler):
    """How the work is tiled."""

    problem: ConvProblem
    tile: PixelTile

    def declines(self, of: ConvProblem) -> Refused | None:
        """The condition that refuses sizes."""
        limits, pixels, lanes = LIMITS.pointwise, known(of.geometry.out[1]), self.tile.device.lanes
        few = between("vectors_of_pixels_are_many", -(-pixels // lanes), limits.fewest_vectors)
        near = pixels <= limits.far or of.filters < of.channels
        fewest = limits.fewest_residual if of.residual else limits.fewest if near else limits.fewest_far
        return few or between("channels_pay_for_rows", of.channels, fewest * lanes)

    def effort(self, of: ConvProblem) -> Effort:
        """What each image and group costs."""
        return pixels_effort(of, self.tile)

    def tiling(self, of: ConvProblem) -> Tiling:
        """The tiling of sizes that are known."""
        tile, pixels, lanes = self.tile, known(of.geometry.out[1]), self.tile.device.lanes
        vectors = -(-pixels // lanes)
        bands, tiles = -(-vectors // tile.vectors), -(-of.filters // tile.filters)
        work = tile.vectors * lanes * of.channels * tile.filters
        # What a band sees is read anew for each part of the filters.
        blocks, part_work = BLOCKS.pointwise, BLOCKS.direct.part_work
        together = min(blocks.together, tiles * bands // blocks.fewest_tiles)
        filter_part = min(tiles, max(1, part_work // work, together))
        pixel_part = max(1, min(bands, part_work // (work * filter_part)))
        filter_parts, held = -(-tiles // filter_part), 1
        shared = shared_parts(-(-bands // pixel_part), of.images, of.groups * filter_parts, bands, tile.device)
        pixel_part = -(-bands // shared)
        if tile.epilogue.rows is not None:
            # Steps go over rows of several bands, which are longer.
            most = bands * -(-tiles // filter_part) // blocks.fewest_tiles
            pixel_part = held = max(pixel_part, min(blocks.row_bands, most))
        pixel_parts = -(-bands // pixel_part)
        wide = 4 * lanes * tile.vectors
        laid = arguments(tile.epilogue).laid_out(
            of.sizes_by_name("r_image")
            | {
                "pixels": pixels, "pixel_parts": pixel_parts, "pixel_part": pixel_part, "filter_parts": filter_parts,
                "filter_part": filter_part, "depth": -(-of.channels // -(-of.channels // blocks.depth)),
            },
            {
                "sums": wide * filter_part * tile.filters * held, "panel": wide * of.channels,
                **row_regions(tile.epilogue),
            },
        )  # fmt: skip
        count = of.images * of.groups * pixel_parts * filter_parts
        return Tiling(laid.sizes, laid.scratch, count, work * filter_part * pixel_part // (2 * lanes) + 1)
