"""Convolution by a window with few output pixels, whose sums are long: filters in lanes, and pixels packed by columns.

What the pixels of a tile see is packed as register tiles read it: tap by tap of every channel, a few pixels side by
side.
"""

from __future__ import annotations

from dovetail.codegen.llvm.arguments import Region
from dovetail.codegen.llvm.function import Function, Parameter, Signature
from dovetail.codegen.llvm.handles import I64, Ptr
from dovetail.codegen.llvm.kernel import SCRATCH, Arguments, KernelCode, assemble
from dovetail.codegen.llvm.once import once_for
from dovetail.codegen.llvm.vector import VectorBuilder
from dovetail.dataclass import dataclass
from dovetail.kernels.choice import Refused
from dovetail.kernels.device import CpuDevice
from dovetail.kernels.problems.convolution import Convolution, ConvProblem, known
from dovetail.kernels.problems.epilogue import Epilogue
from dovetail.kernels.problems.geometry import Blocks
from dovetail.kernels.spec import Tiling
from dovetail.targets.cpu.conv.candidate import LEVEL, Candidate, Candidates, ConvTiler, Effort, between
from dovetail.targets.cpu.conv.epilogue import RowTarget, arguments_of, row_regions
from dovetail.targets.cpu.conv.filters_in_lanes import (
    Corner,
    FilterArgs,
    PixelSource,
    PixelSpan,
    PixelTiles,
    RegisterTile,
    broadcast_tile_of,
    broadcast_tiles,
    filters_effort,
    filters_in_lanes,
    is_filled,
    not_filled,
    transpose_sums,
    write_broadcast_tile,
)
from dovetail.targets.cpu.conv.packing import packed
from dovetail.targets.cpu.conv.patches import Columns, pack_columns, prefetch_share
from dovetail.targets.cpu.conv.policy import BLOCKS, LIMITS, shared_parts


@dataclass(frozen=True, slots=True)
class FewPixelsKxkArgs(FilterArgs):
    """A part sees `block_rows` rows; a piece is some steps; what a register tile sees is `tile_step` bytes from that of
    the one before."""

    tile_step: I64
    taps: Region
    """Offsets of taps."""
    packed: Region
    """What register tiles see."""
    seen: Region
    """What is seen of one channel."""


def arguments(epilogue: Epilogue) -> Arguments[FewPixelsKxkArgs]:
    return arguments_of(FewPixelsKxkArgs, epilogue, "r_image")


def few_pixels_kxk_code(tile: RegisterTile) -> KernelCode:
    """The kernel."""
    shared = [transpose_sums(tile), pack_columns(tile.device), broadcast_tiles(tile)]
    kernel = filters_in_lanes(_Columns, arguments(tile.epilogue), tile)
    return assemble("window_conv", [_pack_taps(tile), kernel], shared)


_PACK = Signature(
    "kernel.lay",
    (
        Parameter("ptr", "seen", "noalias readonly"), Parameter("ptr", "offsets", "noalias readonly"),
        Parameter("i64", "taps"), Parameter("ptr", "onto", "noalias"), Parameter("i64", "tile_step"),
        Parameter("i64", "tiles"), Parameter("i64", "narrow"), Parameter("i64", "wider"),
    ),
)  # fmt: skip


def _pack_taps(tile: RegisterTile) -> Function:
    """Pack what the register tiles see of one channel; each vector is overwritten by what follows it."""
    t = VectorBuilder(tile.device)
    vectors = -(-tile.pixels // t.lanes)
    with t.loop(0, I64("%tiles")) as number:
        begin = t.add(t.mul(number, I64("%narrow")), t.smin(number, I64("%wider")))
        source = t.ptr_add(Ptr("%seen"), t.mul(begin, 4))
        target = t.ptr_add(Ptr("%onto"), t.mul(number, I64("%tile_step")))
        with t.loop(0, I64("%taps")) as tap:
            offset = t.load_i64(t.element(Ptr("%offsets"), "i64", tap))
            here, there = t.ptr_add(source, offset), t.ptr_add(target, t.mul(tap, 4 * tile.pixels))
            for i in range(vectors):
                t.store(t.load(t.ptr_add(here, t.bytes * i)), t.ptr_add(there, t.bytes * i))
    return t.function(_PACK, linkage="internal")


class _Columns(PixelSource[FewPixelsKxkArgs]):
    """Pixels packed tap by tap of every channel, from columns of taps."""

    def __init__(self, t: VectorBuilder, tile: RegisterTile, a: FewPixelsKxkArgs, target: RowTarget | None) -> None:
        super().__init__(t, tile, a, target)
        self.columns = Columns.of(t, a)
        self.taps = t.mul(a.window_rows, a.window_columns)
        with t.loop(0, self.taps) as tap:
            t.store_i64(self.columns.offset(t, a, tap), t.element(a.taps, "i64", tap))

    def pack(self, part: PixelSpan) -> None:
        """Pack what all channels have for some pixels."""
        t, a, taps, tiles = self.t, self.a, self.taps, PixelTiles.of(self.t, self.tile, part.count)
        with t.when(once_for(t, SCRATCH, 0, part.number)):
            source = t.ptr_add(t.ptr_add(a.x, t.mul(part.image, a.image_step)), t.mul(part.group, a.group_step))
            first_row = t.sdiv(part.start, a.out_width)
            within = t.ptr_add(a.seen, t.mul(t.srem(part.start, a.out_width), 4))
            with t.loop(0, a.channels) as channel:
                here = t.ptr_add(source, t.mul(channel, a.channel_step))
                # The next channel is far from this one: the hardware does not prefetch it.
                skipped = t.mul(t.mul(first_row, a.stride_rows), a.row_step)
                size = t.mul(t.mul(self.columns.rows, a.stride_rows), a.row_step)
                prefetch_share(t, t.ptr_add(t.ptr_add(here, a.channel_step), skipped), size, 0, 1)
                self.columns.pack(t, a, here, a.seen, first_row)
                onto = t.ptr_add(a.packed, t.mul(channel, t.mul(taps, 4 * self.tile.pixels)))
                t.call(_PACK, within, a.taps, taps, onto, a.tile_step, tiles.count, tiles.narrow, tiles.wider)

    def multiply(self, at: Corner, results: Ptr) -> None:
        t, tile, a, tiles = self.t, self.tile, self.a, PixelTiles.of(self.t, self.tile, at.count)
        for piece, is_last in self.pieces(at, t.mul(a.channels, self.taps), 4 * tile.block, a.piece):
            with t.loop(0, tiles.count) as number:
                begin = tiles.begin(t, number)
                with t.when(is_last):
                    self.prefetch_results(at, results, begin)
                x = t.ptr_add(a.packed, t.add(t.mul(number, a.tile_step), t.mul(piece.first, 4 * tile.pixels)))
                # The tile goes on to its own pixels by itself: here they begin with the first.
                x = t.ptr_add(x, t.mul(begin, -4))
                write_broadcast_tile(
                    t, tile, tiles, number, piece.w, x, a.sums, 4 * tile.pixels, piece.count, piece.is_first, piece.size
                )  # fmt: skip


def few_pixels_kxk(conv: Convolution, problem: ConvProblem, device: CpuDevice) -> Candidates:
    """The kernel of a convolution with few pixels, many filters and a window of several taps."""
    tile = broadcast_tile_of(device, problem.filters, conv.epilogue, equidistant=True)
    limits = LIMITS.few_pixels_kxk
    if problem.geometry.is_point:
        return Refused("pixels_are_strided_or_see_several", "one, its own")
    point = problem.geometry.taps == 1
    fewest = limits.fewest_channels if point else limits.fewest_sums
    short = between("sums_pay_for_packing", problem.sums, fewest)
    if point and short is None:
        short = between("filters_pay_for_packing", problem.filters, limits.fewest_filters * device.lanes)
    if short is not None:
        return short
    if not is_filled(problem.filters, tile):
        return not_filled(problem.filters, tile)
    tiler = FewPixelsKxk(problem, tile)
    candidate = Candidate(packed(conv, tile.block), tiler, lambda: few_pixels_kxk_code(tile), "few_pixels_kxk")
    return [candidate] if problem.is_level else LEVEL


@dataclass(frozen=True, slots=True)
class FewPixelsKxk(ConvTiler):
    """How the work is tiled."""

    problem: ConvProblem
    tile: RegisterTile

    def declines(self, of: ConvProblem) -> Refused | None:
        """The condition that refuses sizes."""
        limits, pixels = LIMITS.few_pixels_kxk, known(of.geometry.out[0]) * known(of.geometry.out[1])
        return between("pixels_are_few", pixels, 1, limits.most_points if of.geometry.taps == 1 else limits.most_pixels)

    def effort(self, of: ConvProblem) -> Effort:
        """What each image and group costs."""
        pixels = known(of.geometry.out[0]) * known(of.geometry.out[1])
        return filters_effort(of, self.tile, pixels, pixels * of.sums / self.tile.device.lanes)

    def tiling(self, of: ConvProblem) -> Tiling:
        """The tiling of sizes that are known."""
        geometry, tile = of.geometry, self.tile
        height, width = known(geometry.out[0]), known(geometry.out[1])
        count = height * width
        others = of.groups * -(-of.filters // tile.block)
        least = -(-count // BLOCKS.few_pixels_kxk.part_pixels)
        parts = shared_parts(least, of.images, others, count // tile.pixels, tile.device)
        part = -(-count // parts)
        rows = min(height, (part - 2) // width + 2)
        tile_step = -(-of.sums * 4 * tile.pixels // 64) * 64 + BLOCKS.kxk_apart
        planes = geometry.window[1] * geometry.phases_down * (rows + geometry.over[0])
        laid = arguments(tile.epilogue).laid_out(
            geometry.sizes_by_name(Blocks(rows, 1, 1, 1))
            | of.sizes_by_name("r_image")
            | {
                "pixels": count, "parts": parts, "part": part, "piece": BLOCKS.few_pixels_kxk.piece,
                "tile_step": tile_step,
            },
            {
                "taps": 8 * geometry.taps, "sums": 4 * part * tile.block, "packed": -(-part // tile.pixels) * tile_step,
                **row_regions(tile.epilogue, 4 * tile.block * part),
                "seen": 4 * (planes * width + 4 * tile.device.lanes),
            },
        )  # fmt: skip
        tiles = of.images * others * parts
        work = part * tile.block * of.sums // (2 * tile.device.lanes)
        return Tiling(laid.sizes, laid.scratch, tiles, work + 1)
