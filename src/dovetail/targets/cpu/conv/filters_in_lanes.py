"""Convolution with filters in the lanes of vectors: one loop nest, whose pixels come from a source.

A tile of the kernel is one block of filters at some pixels of one image. A register tile is some vectors of filters by
a few pixels. Sums [pixel][filter] are kept in the workspace from one piece of the products to the next, so that the
weights of a piece stay in L1; at the end they are transposed and finished. A source says how a register tile finds what
its pixels see: at positions in the image (`few_pixels`), packed by columns of taps (`few_pixels_kxk`), in a patch
(`few_channels`), or packed pixel by pixel (`pointwise_packed`). Winograd multiplies its patches with the same register
tiles.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import Generic, TypeAlias, TypeVar

from dovetail.codegen.llvm.arguments import Region
from dovetail.codegen.llvm.function import Function, Parameter, Signature
from dovetail.codegen.llvm.handles import I1, I64, NULL, Int, Ptr, Vec
from dovetail.codegen.llvm.kernel import BEGIN, END, SCRATCH, WORDS, Arguments, kernel_function, one_of
from dovetail.codegen.llvm.vector import ZERO, VectorBuilder
from dovetail.dataclass import dataclass
from dovetail.kernels.choice import Refused
from dovetail.kernels.device import CpuDevice
from dovetail.kernels.problems.convolution import ConvProblem
from dovetail.kernels.problems.epilogue import Epilogue
from dovetail.targets.cpu.conv.candidate import Effort, rate, transposed
from dovetail.targets.cpu.conv.epilogue import RowTarget, activate, writer_of
from dovetail.targets.cpu.conv.patches import WindowArgs
from dovetail.targets.cpu.conv.policy import ISSUE, LIMITS, tiles_of


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


def filled(filters: int, tile: RegisterTile) -> int:
    """Filters with those of lanes that stay empty."""
    return -(-filters // tile.block) * tile.block


def is_filled(filters: int, tile: RegisterTile) -> bool:
    return filled(filters, tile) <= LIMITS.lanes_waste * filters


def not_filled(filters: int, tile: RegisterTile) -> Refused:
    most = f"at most {LIMITS.lanes_waste} times as many"
    return Refused("filters_fill_lanes", f"{filled(filters, tile)} lanes for {filters} filters", most)


def filters_effort(of: ConvProblem, tile: RegisterTile, pixels: int, packed: float) -> Effort:
    """Each vector of filters meets each pixel; results are transposed."""
    lanes, vectors = tile.device.lanes, -(-of.filters // tile.block) * tile.filters
    together = min(tile.pixels, max(1, pixels))
    # A vector of weights that comes from L2 meets the pixels of a register tile.
    streamed = together * ISSUE.l2_bytes / (4 * lanes) / ISSUE.fmas
    fmas = vectors * pixels * of.sums / min(rate(tile.filters, together), streamed)
    return Effort(fmas, packed + transposed(vectors * pixels, lanes), lanes)


# The loop nest.


@dataclass(frozen=True, slots=True)
class FilterArgs(WindowArgs):
    """The tensors and sizes of kernels with filters in lanes: `parts` tiles of `part` pixels each share an image, and a
    piece is some products of all sums."""

    x: Ptr
    w: Ptr
    b: Ptr
    r: Ptr
    y: Ptr
    channels: I64
    filters: I64
    groups: I64
    image_step: I64
    group_step: I64
    channel_step: I64
    pixels: I64
    parts: I64
    part: I64
    piece: I64
    r_image: I64
    sums: Region
    rows: Region


@dataclass(frozen=True, slots=True)
class PixelSpan:
    """The pixels of a tile: its number among those of all images and groups, its image and group, its index in the
    image, its first pixel and how many there are; and the block of filters that sees them, among all."""

    number: I64
    image_group: I64
    image: I64
    group: I64
    index: I64
    start: I64
    count: I64
    packed: I64


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
class DepthChunk:
    """Some products of all sums: their weights and the bytes of these, the first product and how many there are."""

    w: Ptr
    size: I64
    first: I64
    count: I64
    is_first: I1


A = TypeVar("A", bound=FilterArgs)


class PixelSource(ABC, Generic[A]):
    """How register tiles find what their pixels see, while a kernel is written."""

    def __init__(self, t: VectorBuilder, tile: RegisterTile, a: A, target: RowTarget | None) -> None:
        """`target` is where steps on rows read the results."""
        self.t, self.tile, self.a, self.target = t, tile, a, target

    @abstractmethod
    def pack(self, part: PixelSpan) -> None:
        """Pack what the pixels of a tile see, unless the tile before saw the same."""

    def runs(self, part: PixelSpan) -> Iterator[tuple[I64, I64]]:
        """The first pixel and the number of pixels of each run whose sums are finished together: all of them."""
        yield part.start, part.count

    @abstractmethod
    def multiply(self, at: Corner, results: Ptr) -> None:
        """Write the sums of some pixels."""

    def finish(self, at: Corner, results: Ptr) -> None:
        """Transpose and finish the sums of some pixels."""
        write_transposed(self.t, self.tile, self.a, at, results, self.target)

    def prefetch_results(self, at: Corner, results: Ptr, pixel: I64) -> None:
        """Prefetch the lines of results from a pixel on, unless these are rows of the workspace."""
        if self.target is None:
            t = self.t
            own = t.smin(self.tile.block, t.sub(self.a.filters, at.first_filter))
            write_prefetched_rows(t, results, own, t.mul(self.a.pixels, 4), t.mul(pixel, 4))

    def pieces(self, at: Corner, steps: I64, each: Int, piece: I64) -> Iterator[tuple[DepthChunk, I1]]:
        """The products of all sums, some at a time, and whether they are the last; `each` is the bytes of weights of
        a step."""
        t = self.t
        weights = t.ptr_add(self.a.w, t.mul(t.mul(at.packed, steps), each))
        with t.loop(0, t.ceil_div(steps, piece)) as number:
            first = t.mul(number, piece)
            some = t.smin(piece, t.sub(steps, first))
            w, size = t.ptr_add(weights, t.mul(first, each)), t.mul(some, each)
            yield (
                DepthChunk(w, size, first, some, t.icmp("eq", number, 0)),
                t.icmp("eq", t.add(first, some), steps),
            )


Source: TypeAlias = Callable[[VectorBuilder, RegisterTile, A, RowTarget | None], PixelSource[A]]


def filters_in_lanes(source: Source[A], arguments: Arguments[A], tile: RegisterTile) -> Function:
    """The kernel: the tiles from `begin` to before `end`."""
    t = VectorBuilder(tile.device)
    a = arguments.load(t, WORDS, SCRATCH)
    target = RowTarget.of(writer_of(t, arguments, tile.epilogue, a.y), a.rows)
    pixels = source(t, tile, a, target)
    blocks = t.ceil_div(a.filters, tile.block)
    with t.loop(BEGIN, END) as number:
        # Keep the pixel-to-thread mapping fixed across layers: inputs are in that core's cache.
        filter_block, left = t.srem(number, blocks), t.sdiv(number, blocks)
        index, image_group = t.srem(left, a.parts), t.sdiv(left, a.parts)
        group, image = t.srem(image_group, a.groups), t.sdiv(image_group, a.groups)
        start = t.mul(index, a.part)
        packed, first_filter = t.add(t.mul(group, blocks), filter_block), t.mul(filter_block, tile.block)
        part = PixelSpan(left, image_group, image, group, index, start, t.smin(a.part, t.sub(a.pixels, start)), packed)
        pixels.pack(part)
        channel = t.add(t.mul(image_group, a.filters), first_filter)
        row = t.ptr_add(a.y, t.mul(channel, t.mul(a.pixels, 4)))
        for first, count in pixels.runs(part):
            at, results = Corner(image, group, packed, first_filter, first, count), t.ptr_add(row, t.mul(first, 4))
            pixels.multiply(at, results)
            pixels.finish(at, results)
    return kernel_function(t)


# Finishing sums.


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
            rows.append(activate(t, before.steps, x if bias is None else t.fadd(x, bias)))
        mask = t.lanes_within(pixel, pixels)
        for i, x in enumerate(t.transpose(rows)):
            with t.when(t.icmp("slt", i, I64("%filters"))):
                by = t.add(t.mul(step, i), t.mul(pixel, 4))
                if epilogue.residual:
                    x = activate(t, epilogue.steps, t.fadd(x, t.load_masked(mask, t.ptr_add(Ptr("%r"), by))))
                if epilogue.rows is not None:
                    by = t.add(t.mul(I64("%row_step"), i), t.mul(pixel, 4))
                t.store_masked(mask, x, t.ptr_add(Ptr("%y"), by))
    return t.function(transpose_signature(epilogue))


def write_transposed(
    t: VectorBuilder, tile: RegisterTile, a: FilterArgs, at: Corner, results: Ptr, target: RowTarget | None
) -> None:
    """Transpose the sums of a block of filters, a vector of filters at a time, and finish them."""
    lanes, area = t.lanes, t.mul(a.pixels, 4)
    with t.loop(0, tile.filters) as vector:
        first = t.add(at.first_filter, t.mul(vector, lanes))
        own = t.smin(lanes, t.sub(a.filters, first))
        with t.when(t.icmp("sgt", own, 0)):
            bias = residual = NULL
            if tile.epilogue.bias:
                bias = t.ptr_add(a.b, t.mul(t.add(t.mul(at.packed, tile.block), t.mul(vector, lanes)), 4))
            y = t.ptr_add(results, t.mul(t.mul(vector, lanes), area))
            here = t.ptr_add(a.sums, t.mul(vector, t.bytes))
            if tile.epilogue.residual:
                channel = t.add(t.mul(at.group, a.filters), first)
                within = t.add(t.mul(channel, area), t.mul(at.start, 4))
                residual = t.ptr_add(t.ptr_add(a.r, t.mul(at.image, a.r_image)), within)
            write_finished(
                t, tile.epilogue, target, here, bias, residual, y, area, own, at.count, 4 * tile.block, vector
            )
    if target is not None:
        held = t.smin(tile.block, t.sub(a.filters, at.first_filter))
        channel = t.add(t.mul(at.group, a.filters), at.first_filter)
        target.write(t, t.mul(at.count, 4), held, at.count, (at.image, channel, at.start))


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


# The register tile of contiguous pixels, with embedded broadcasts.


def broadcast_tile_of(device: CpuDevice, filters: int, epilogue: Epilogue, *, equidistant: bool) -> RegisterTile:
    """The register tile that wastes least lanes; `equidistant` says whether steps are equally far apart."""
    tiles = [RegisterTile(device, *form, epilogue, equidistant) for form in tiles_of(device).broadcast]
    return min(tiles, key=lambda tile: -(-filters // tile.block) * tile.block)


def broadcast_tiles(tile: RegisterTile) -> Function:
    """Register tiles of every number of pixels, as one function with their number as an argument."""
    members = {pixels: broadcast_tile(tile, pixels) for pixels in range(1, tile.pixels + 1)}
    return one_of(_signature(tile).name, members)


def _signature(tile: RegisterTile, pixels: int | None = None) -> Signature:
    """One register tile, or with `pixels` None the function that takes their number."""
    name = f"places_tile.{tile.device.lanes}.{tile.filters}{'' if tile.point else '.listed'}"
    apart = Parameter("i64", "apart") if tile.point else Parameter("ptr", "apart", "noalias readonly")
    which = () if pixels is not None else (Parameter("i64", "which"),)
    return Signature(
        name if pixels is None else f"{name}.{pixels}",
        (
            Parameter("ptr", "w", "noalias readonly"), Parameter("ptr", "x", "noalias readonly"), apart,
            Parameter("i64", "steps"), Parameter("ptr", "sums", "noalias"), Parameter("i1", "first"),
            Parameter("ptr", "next"), Parameter("i64", "pace"), *which,
        ),
    )  # fmt: skip


def broadcast_tile(tile: RegisterTile, pixels: int) -> Function:
    """Add some steps to the accumulators at `sums`, or to nothing.

    `apart` is the distance of steps in bytes, or a list of distances. Each step prefetches a line at `next`, which so
    comes without haste.
    """
    t = VectorBuilder(tile.device)
    filters = tile.filters
    moves = [] if tile.point else [Ptr("%apart")]
    # Carried are the steps left, pointers into weights and image, the list of moves, and the next line to prefetch.
    pointers = [Ptr("%w"), Ptr("%x"), *moves, Ptr("%next")]
    with t.repeat([I64("%steps")], pointers, [ZERO] * (filters * pixels)) as state:
        w, x, *moves, ahead = state.pointers
        t.prefetch(ahead)
        weights = [t.load(t.ptr_add(w, t.bytes * i)) for i in range(filters)]
        sums: list[Vec] = []
        for j in range(pixels):
            here, own = t.ptr_add(x, 4 * j), state.vectors[filters * j : filters * (j + 1)]
            if j % 2 and t.device.has("embedded_broadcast"):
                sums += [t.fma_broadcast(w, here, total) for w, total in zip(weights, own, strict=True)]
            else:
                number = t.load_splat(here)
                sums += [t.fma(w, number, total) for w, total in zip(weights, own, strict=True)]
        state.vectors[:] = sums
        moved = [t.ptr_add(w, t.bytes * filters)]
        if tile.point:
            moved.append(t.ptr_add(x, I64("%apart")))
        else:
            following = t.ptr_add(x, t.load_i64(moves[0]))
            moved.append(t.opaque(following) if t.device.has("embedded_broadcast") else following)
            moved.append(t.ptr_add(moves[0], 8))
        state.pointers[:] = [*moved, t.ptr_add(ahead, I64("%pace"))]
        state.integers[0] = t.preceding(state.integers[0])
        state.again = t.icmp("ne", state.integers[0], 0)
    write_sums(t, state.vectors)
    return t.function(_signature(tile, pixels), linkage="internal")


def write_sums(t: VectorBuilder, sums: Sequence[Vec]) -> None:
    """Store accumulators at `sums` if they are the `first`, or else add them to what is there.

    A piece is summed by itself and then added: short sums that are added round less than a long one.
    """
    first = I1("%first")
    spots = [t.ptr_add(Ptr("%sums"), t.bytes * i) for i in range(len(sums))]
    with t.when(first):
        for spot, total in zip(spots, sums, strict=True):
            t.store(total, spot)
    with t.unless(first):
        for spot, total in zip(spots, sums, strict=True):
            t.store(t.fadd(t.load(spot), total), spot)


@dataclass(frozen=True, slots=True)
class PixelTiles:
    """How pixels are cut into register tiles, as equal as they can be: how many, and how many pixels they have."""

    count: I64
    narrow: I64
    wider: I64
    """Tiles that have one pixel more."""

    @staticmethod
    def of(t: VectorBuilder, tile: RegisterTile, pixels: Int) -> PixelTiles:
        count = t.ceil_div(pixels, tile.pixels)
        return PixelTiles(count, t.sdiv(pixels, count), t.srem(pixels, count))

    def begin(self, t: VectorBuilder, number: I64) -> I64:
        """The first pixel of a register tile."""
        return t.add(t.mul(number, self.narrow), t.smin(number, self.wider))


def write_broadcast_tile(
    t: VectorBuilder,
    tile: RegisterTile,
    of: PixelTiles,
    number: I64,
    w: Ptr,
    x: Ptr,
    sums: Ptr,
    apart: Ptr | I64 | int,
    steps: Int,
    first: I1,
    size: Int,
) -> None:
    """Run one register tile, whose pixels, and their sums, follow those of the ones before.

    Meanwhile it prefetches its share of the `size` bytes that follow its weights.
    """
    pixels = t.add(of.narrow, t.zext(t.icmp("slt", number, of.wider)))
    begin = of.begin(t, number)
    seen, onto = t.ptr_add(x, t.mul(begin, 4)), t.ptr_add(sums, t.mul(begin, 4 * tile.block))
    pace = t.sdiv(4 * tile.block, of.count)
    share = t.ptr_add(t.ptr_add(w, size), t.mul(t.sdiv(size, of.count), number))
    t.call(_signature(tile), w, seen, apart, steps, onto, first, share, pace, pixels)
