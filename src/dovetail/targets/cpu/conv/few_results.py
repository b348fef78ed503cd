"""The register tile of few results: rows of results of some channels by vectors of filters, summed over pixels.

It stays apart from the nest of `filters_in_lanes`: windows are as large as images and filters are those of a run, so a
tile transposes the filters of one channel, shares them among images, and keeps the sums of all images meanwhile.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from math import prod
from typing import Protocol

from dovetail.codegen.llvm.arguments import Arguments, Region
from dovetail.codegen.llvm.function import Function, Parameter, Signature
from dovetail.codegen.llvm.handles import I64, NULL, Carried, Ptr, Vec
from dovetail.codegen.llvm.kernel import BEGIN, END, SCRATCH, WORDS, KernelCode, assemble, kernel_function, one_of
from dovetail.codegen.llvm.vector import ZERO, VectorBuilder
from dovetail.dataclass import dataclass
from dovetail.ir.dtype import f32
from dovetail.kernels.choice import Refused
from dovetail.kernels.device import CpuDevice
from dovetail.kernels.problems.convolution import Convolution, ConvProblem, known
from dovetail.kernels.problems.epilogue import Epilogue
from dovetail.kernels.spec import TensorLocations, Tiling
from dovetail.targets.cpu.conv.candidate import Candidate, ConvTiler, Effort
from dovetail.targets.cpu.conv.filters_in_lanes import RegisterTile, transpose_signature, transpose_sums
from dovetail.targets.cpu.conv.packing import pointers
from dovetail.targets.cpu.conv.patches import pack_phase, pack_phase_signature
from dovetail.targets.cpu.conv.policy import BLOCKS, LIMITS, tiles_of
from dovetail.targets.cpu.gemm.f32.pair_pack import OperandLayout, pack_function


@dataclass(frozen=True, slots=True)
class FewResultsTile:
    """What the code depends on. A line is a row of results of one channel, such as the three taps of a 3×3 filter."""

    device: CpuDevice
    vectors: int
    """Vectors of filters."""
    lines: int
    """Lines, at most."""
    results: int
    """Results of a line."""
    apart: int
    """Bytes between what two results of a line see of one pixel of the window."""
    step: int
    """Bytes between what a result sees of two pixels of the window."""

    @staticmethod
    def of(device: CpuDevice, results: int, stride: int, dilation: int) -> FewResultsTile | None:
        """As many lines as registers hold; None where they hold none, or the device has no such tile."""
        shape = tiles_of(device).few_results
        lines = 0 if shape is None else min(BLOCKS.few_results.most_lines, shape[1] // results)
        return None if shape is None or lines == 0 else FewResultsTile(
            device, shape[0], lines, results, 4 * stride, 4 * dilation
        )  # fmt: skip

    @property
    def block(self) -> int:
        """Filters of a tile."""
        return self.vectors * self.device.lanes


@lru_cache(64)
def register_tiles(tile: FewResultsTile) -> Function:
    """Register tiles of every number of lines, as one function with their number as an argument."""
    return one_of(tile_signature(tile).name, {lines: register_tile(tile, lines) for lines in range(1, tile.lines + 1)})


def tile_signature(tile: FewResultsTile, lines: int | None = None) -> Signature:
    """One register tile, or with `lines` None the function that takes their number."""
    name = f"few_results.{tile.device.lanes}.{tile.vectors}.{tile.lines}.{tile.results}.{tile.apart}.{tile.step}"
    which = () if lines is not None else (Parameter("i64", "which"),)
    return Signature(
        name if lines is None else f"{name}.{lines}",
        (
            Parameter("ptr", "w", "noalias readonly"), Parameter("ptr", "x", "noalias readonly"),
            Parameter("ptr", "offsets", "noalias readonly"), Parameter("ptr", "sums", "noalias"),
            Parameter("i64", "rows"), Parameter("i64", "columns"), Parameter("i64", "row_step"), *which,
        ),
    )  # fmt: skip


def register_tile(tile: FewResultsTile, lines: int) -> Function:
    """Sum the pixels of some rows of the window, and add them to what the rows before gave."""
    t = VectorBuilder(tile.device)
    count = lines * tile.results * tile.vectors
    starts = [t.ptr_add(Ptr("%x"), t.load_i64(t.element(Ptr("%offsets"), "i64", i))) for i in range(lines)]
    # LLVM would keep what two pixels see for both of them, in registers that are the sums' where there are 16.
    parts = (BLOCKS.few_results.unroll, 1) if tile.device.registers > 16 else (1,)
    with t.repeat([0], [Ptr("%w"), *starts], [ZERO] * count) as row:
        left, vectors, pointers = I64("%columns"), row.vectors, row.pointers
        for pixels in parts:
            with t.carry(0, t.udiv(left, pixels), vectors, pointers) as state:
                _accumulate(t, tile, state, pixels)
            left, vectors, pointers = t.urem(left, pixels), state.vectors, state.pointers
        row.pointers[:] = [pointers[0], *(t.ptr_add(start, I64("%row_step")) for start in row.pointers[1:])]
        row.vectors[:] = vectors
        row.integers[0] = t.following(row.integers[0])
        row.again = t.icmp("slt", row.integers[0], I64("%rows"))
    for i, total in enumerate(row.vectors):
        spot = t.ptr_add(Ptr("%sums"), t.bytes * i)
        t.store(t.fadd(t.load(spot), total), spot)
    return t.function(tile_signature(tile, lines), linkage="internal")


def _accumulate(t: VectorBuilder, tile: FewResultsTile, state: Carried, pixels: int) -> None:
    """Add some successive pixels of the window."""
    w, *lines = state.pointers
    for pixel in range(pixels):
        filters = [t.load(t.ptr_add(w, t.bytes * (pixel * tile.vectors + v))) for v in range(tile.vectors)]
        seen = [t.ptr_add(line, pixel * tile.step + i * tile.apart) for line in lines for i in range(tile.results)]
        for i, spot in enumerate(seen):
            first = i * tile.vectors
            held = state.vectors[first : first + tile.vectors]
            state.vectors[first : first + tile.vectors] = _products(t, filters, spot, held)
    state.pointers[:] = [
        t.ptr_add(w, t.bytes * tile.vectors * pixels),
        *(t.ptr_add(line, pixels * tile.step) for line in lines),
    ]


def _products(t: VectorBuilder, filters: Sequence[Vec], spot: Ptr, held: Sequence[Vec]) -> list[Vec]:
    """One element times each vector of filters, added to sums."""
    if len(filters) == 1:
        return [t.fma_broadcast(filters[0], spot, held[0])]
    seen = t.load_splat(spot)
    return [t.fma(seen, w, total) for w, total in zip(filters, held, strict=True)]


@dataclass(frozen=True, slots=True)
class FewResultsArgs:
    """Sizes and strides; strides are bytes. The window is [rows, columns], the results are [lines, results]."""

    x: Ptr
    w: Ptr
    y: Ptr
    images: I64
    channels: I64
    filters: I64
    height: I64
    width: I64
    image_step: I64
    channel_step: I64
    row_step: I64
    column_step: I64
    above: I64
    before: I64
    rows: I64
    columns: I64
    lines: I64
    results: I64
    stride_rows: I64
    dilation_rows: I64
    w_filter: I64
    w_channel: I64
    w_run: I64
    w_pixel: I64
    runs: I64
    """Parts of the window whose pixels are equally far apart: one, or its rows."""
    run: I64
    part: I64
    """Images of a tile, at most."""
    piece: I64
    """Rows of the window that are summed at a time, at most."""
    seen_rows: I64
    pitch: I64
    """Columns that the window sees."""
    offsets: Region
    """Of what each line sees first, in bytes."""
    sums: Region
    packed: Region
    seen: Region


@dataclass(frozen=True, slots=True)
class FewResultsForm:
    """A register tile, what becomes of the sums, and how the filters are stored."""

    tile: FewResultsTile
    epilogue: Epilogue
    layout: OperandLayout


ARGUMENTS = Arguments(FewResultsArgs)


def few_results_code(form: FewResultsForm) -> KernelCode:
    """The kernel."""
    tile = form.tile
    turned = RegisterTile(tile.device, tile.vectors, tile.lines * tile.results, form.epilogue, False)
    pack, _ = pack_function(tile.device, f32, form.layout, tile.block, 4 * tile.block)
    code = assemble(
        "few_results", [_kernel(form)], [transpose_sums(turned), pack_phase(tile.device), register_tiles(tile)]
    )
    return KernelCode(code.name, code.text, code.uses, (*code.shared, pack), code.is_final)


def _kernel(form: FewResultsForm) -> Function:
    """The tiles from `begin` to before `end`."""
    tile = form.tile
    t = VectorBuilder(tile.device)
    a = ARGUMENTS.load(t, WORDS, SCRATCH)
    plane, taps = t.mul(t.mul(a.seen_rows, a.pitch), 4), t.mul(a.lines, a.results)
    down = t.mul(t.mul(a.stride_rows, a.pitch), 4)
    with t.loop(0, t.mul(a.part, a.lines)) as line:
        offset = t.add(t.mul(t.sdiv(line, a.lines), plane), t.mul(t.srem(line, a.lines), down))
        t.store_i64(offset, t.element(a.offsets, "i64", line))
    blocks = t.ceil_div(a.filters, tile.block)
    with t.loop(BEGIN, END) as number:
        first_filter, first = t.mul(t.srem(number, blocks), tile.block), t.mul(t.sdiv(number, blocks), a.part)
        own, images = t.smin(tile.block, t.sub(a.filters, first_filter)), t.smin(a.part, t.sub(a.images, first))
        with t.loop(0, t.mul(t.mul(images, taps), tile.vectors)) as one:
            t.store(ZERO, t.ptr_add(a.sums, t.mul(one, t.bytes)))
        with t.loop(0, a.channels) as channel:
            _pack(t, form, a, channel, (first, images, plane), (first_filter, own))
            with t.loop(0, a.rows, step=a.piece) as row:
                _multiply(t, tile, a, row, t.mul(images, a.lines))
        _finish(t, form, a, (first, images), (first_filter, own), taps)
    return kernel_function(t)


def _pack(
    t: VectorBuilder,
    form: FewResultsForm,
    a: FewResultsArgs,
    channel: I64,
    seen: tuple[I64, I64, I64],
    filters: tuple[I64, I64],
) -> None:
    """Transpose a block of filters, and pack what their window sees of some images."""
    (first, images, plane), (first_filter, own) = seen, filters
    block = form.tile.block
    _, transposed = pack_function(t.device, f32, form.layout, block, 4 * block)
    t.use(transposed.declaration)
    w = t.ptr_add(t.ptr_add(a.w, t.mul(first_filter, a.w_filter)), t.mul(channel, a.w_channel))
    with t.loop(0, a.runs) as run:
        source, onto = t.ptr_add(w, t.mul(run, a.w_run)), t.ptr_add(a.packed, t.mul(t.mul(run, a.run), 4 * block))
        t.call(transposed, source, a.w_pixel, a.w_filter, onto, 0, own, a.run)
    x = t.ptr_add(t.ptr_add(a.x, t.mul(first, a.image_step)), t.mul(channel, a.channel_step))
    with t.loop(0, images) as image:
        t.call(
            pack_phase_signature(t.lanes), t.ptr_add(x, t.mul(image, a.image_step)),
            t.ptr_add(a.seen, t.mul(image, plane)), a.height, a.width, a.row_step, a.column_step, a.column_step, 1, 1,
            t.sub(0, a.above), t.sub(0, a.before), a.seen_rows, a.pitch, t.mul(a.pitch, 4),
        )  # fmt: skip


def _multiply(t: VectorBuilder, tile: FewResultsTile, a: FewResultsArgs, row: I64, lines: I64) -> None:
    """Add a piece of the window to all sums, in register tiles as equal as they can be."""
    row_step = t.mul(t.mul(a.dilation_rows, a.pitch), 4)
    rows = t.smin(a.piece, t.sub(a.rows, row))
    w = t.ptr_add(a.packed, t.mul(t.mul(row, a.columns), 4 * tile.block))
    x = t.ptr_add(a.seen, t.mul(row, row_step))
    count = t.ceil_div(lines, tile.lines)
    narrow, wider = t.sdiv(lines, count), t.srem(lines, count)
    with t.loop(0, count) as number:
        own = t.add(narrow, t.zext(t.icmp("slt", number, wider)))
        line = t.add(t.mul(number, narrow), t.smin(number, wider))
        sums = t.ptr_add(a.sums, t.mul(line, 4 * tile.block * tile.results))
        offsets = t.element(a.offsets, "i64", line)
        t.call(tile_signature(tile), w, x, offsets, sums, rows, a.columns, row_step, own)


def _finish(
    t: VectorBuilder,
    form: FewResultsForm,
    a: FewResultsArgs,
    seen: tuple[I64, I64],
    filters: tuple[I64, I64],
    taps: I64,
) -> None:
    """Transpose the sums of each image, a vector of filters at a time."""
    (first, images), (first_filter, own), tile = seen, filters, form.tile
    area, line = t.mul(taps, 4), 4 * tile.block
    with t.loop(0, images) as image, t.loop(0, tile.vectors) as vector:
        done = t.mul(vector, t.lanes)
        left = t.smin(t.lanes, t.sub(own, done))
        with t.when(t.icmp("sgt", left, 0)):
            sums = t.ptr_add(a.sums, t.add(t.mul(t.mul(image, taps), line), t.mul(vector, t.bytes)))
            number = t.add(t.mul(t.add(first, image), a.filters), t.add(first_filter, done))
            y = t.ptr_add(a.y, t.mul(number, area))
            t.call(transpose_signature(form.epilogue), sums, NULL, NULL, y, area, left, taps, line)


def few_results(
    conv: Convolution, problem: ConvProblem, device: CpuDevice, locations: TensorLocations
) -> Candidate | Refused:
    """The kernel of a convolution whose filters are as large as images, as in the gradient of filters."""
    geometry = problem.geometry
    if not geometry.is_known or not isinstance(problem.images, int) or 0 in (*geometry.sizes, problem.images):
        return Refused("sizes_are_known", f"{problem.images} images of {geometry.sizes}", "some pixels")
    results = (known(geometry.out[0]), known(geometry.out[1]))
    tile = tile_for(device, problem.groups, problem.filters, results, geometry.window, geometry)
    if isinstance(tile, Refused):
        return tile
    epilogue = conv.epilogue
    if epilogue.bias or epilogue.residual or epilogue.rows is not None:
        return Refused("epilogue_is_an_activation", "a bias, a residual or steps on rows")
    strides = locations(conv.w).strides
    steps = tuple([step for step in strides if isinstance(step, int)])
    if len(steps) != len(strides):
        return Refused("filters_have_known_strides", f"strides {strides}")
    if len(steps) == 3:
        steps = (*steps[:2], 0, steps[2])
    form = FewResultsForm(tile, epilogue, "along" if steps[3] == 4 else "strided")
    tiler = FewResults(problem, form, steps)
    return Candidate(pointers(conv, conv.w, None), tiler, lambda: few_results_code(form), "few_results")


class WindowSteps(Protocol):
    """How far apart results are, and pixels of the window."""

    @property
    def strides(self) -> tuple[int, ...]: ...
    @property
    def dilations(self) -> tuple[int, ...]: ...


def tile_for(
    device: CpuDevice, groups: int, filters: int, results: Sequence[int], window: Sequence[int], apart: WindowSteps
) -> FewResultsTile | Refused:
    """The register tile for sizes of a convolution, or the condition that refuses them."""
    if groups != 1 or prod(results) >= prod(window) or 0 in results:
        sizes = f"{results} results, a window of {window}, {groups} groups"
        return Refused("results_are_fewer_than_taps", sizes, "one group")
    tile = FewResultsTile.of(device, results[-1], apart.strides[-1], apart.dilations[-1])
    if tile is None:
        return Refused("registers_hold_a_line_of_results", f"{results[-1]} results")
    filled = -(-filters // tile.block) * tile.block
    if filled > LIMITS.lanes_waste * filters:
        return Refused("filters_fill_lanes", f"{filled} lanes for {filters} filters")
    return tile


@dataclass(frozen=True, slots=True)
class FewResults(ConvTiler):
    """How the work is tiled."""

    problem: ConvProblem
    form: FewResultsForm
    steps: tuple[int, ...]
    """Strides of filters: of a filter, a channel, a row and a column."""

    def tiling(self, of: ConvProblem) -> Tiling:
        """The tiling of sizes that are known."""
        geometry, tile, images = of.geometry, self.form.tile, known(of.images)
        (height, width), (rows, columns), (lines, results) = geometry.sizes, geometry.window, geometry.out
        seen_rows, pitch = self._seen(of)
        part, taps = self._part(of), known(lines) * known(results)
        whole = rows == 1 or self.steps[2] == columns * self.steps[3]
        runs, run = (1, rows * columns) if whole else (rows, columns)
        piece = max(1, tile.device.caches.l1_room // 2 // (4 * tile.block * columns))
        filter_step, channel_step, row_step, pixel_step = self.steps
        laid = ARGUMENTS.laid_out(
            {
                "images": images, "channels": of.channels, "filters": of.filters, "height": height, "width": width,
                "image_step": of.steps[0], "channel_step": of.steps[1], "row_step": geometry.steps[0],
                "column_step": geometry.steps[1], "above": geometry.before[0], "before": geometry.before[1],
                "rows": rows, "columns": columns, "lines": lines, "results": results,
                "stride_rows": geometry.strides[0], "dilation_rows": geometry.dilations[0],
                "w_filter": filter_step, "w_channel": channel_step, "w_run": row_step, "w_pixel": pixel_step,
                "runs": runs, "run": run, "part": part, "piece": piece, "seen_rows": seen_rows, "pitch": pitch,
            },
            {
                "offsets": 8 * part * known(lines), "sums": 4 * part * taps * tile.block,
                "packed": 4 * rows * columns * tile.block,
                "seen": 4 * (part * seen_rows * pitch + 2 * tile.device.lanes),
            },
        )  # fmt: skip
        work = part * taps * of.channels * rows * columns * tile.block // (2 * tile.device.lanes)
        return Tiling(laid.sizes, laid.scratch, -(-images // part) * -(-of.filters // tile.block), work + 1)

    def _part(self, of: ConvProblem) -> int:
        """Images of a tile: each tile transposes filters, threads have tiles to share, and patches stay in L2."""
        tile, images = self.form.tile, known(of.images)
        blocks, threads = -(-of.filters // tile.block), tile.device.threads
        results = known(of.geometry.out[0]) * known(of.geometry.out[1])
        seen_rows, pitch = self._seen(of)
        most = max(1, min(images, tile.device.caches.l2_room // 2 // (4 * seen_rows * pitch)))

        def time(part: int) -> int:
            tiles = -(-images // part) * blocks
            return -(-tiles // threads) * (part * results + BLOCKS.few_results.turn)

        return min(range(1, most + 1), key=time)

    def _seen(self, of: ConvProblem) -> tuple[int, int]:
        """Rows and columns that the window sees from its first result to its last."""
        geometry = of.geometry
        axes = zip(geometry.window, geometry.dilations, geometry.out, geometry.strides, strict=True)
        rows, columns = [(window - 1) * d + (known(out) - 1) * s + 1 for window, d, out, s in axes]
        return rows, columns

    def effort(self, of: ConvProblem) -> Effort:
        """What each image costs: filters are transposed for each tile."""
        tile, images = self.form.tile, known(of.images)
        blocks, pixels = -(-of.filters // tile.block), of.geometry.taps
        results = known(of.geometry.out[0]) * known(of.geometry.out[1])
        tiles = -(-images // self._part(of))
        moved = of.channels * pixels * blocks * (images + tiles * tile.block * BLOCKS.few_results.turn)
        lanes = tile.device.lanes
        return Effort(results * of.channels * pixels * blocks * tile.vectors, moved / (images * lanes), lanes)
