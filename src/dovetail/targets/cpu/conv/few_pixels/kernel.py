"""Convolution with few output pixels: filters in the lanes of vectors, so that no lane is empty.

A tile is one block of filters at some pixels of one image. Each register tile has some vectors of filters and a few
pixels, wherever they are: what a pixel sees is read scalar by scalar. Sums are kept in the workspace from one piece of
the channels to the next, so that the weights of a piece stay in L1; at the end they are transposed.
"""

from __future__ import annotations

from collections.abc import Sequence

from dovetail.codegen.llvm.arguments import Region
from dovetail.codegen.llvm.function import Function, Parameter, Signature
from dovetail.codegen.llvm.handles import I1, I64, Carried, Int, Ptr, Vec
from dovetail.codegen.llvm.kernel import (
    BEGIN,
    END,
    SCRATCH,
    WORDS,
    Arguments,
    KernelCode,
    assemble,
    kernel_function,
)
from dovetail.codegen.llvm.once import once_for
from dovetail.codegen.llvm.vector import ZERO, VectorBuilder
from dovetail.dataclass import dataclass
from dovetail.kernels.device import CpuDevice
from dovetail.kernels.problems.epilogue import Epilogue
from dovetail.targets.cpu.conv.epilogue import RowTarget, arguments_of, writer_of
from dovetail.targets.cpu.conv.patches import FewPixelsWindow, pack_phase, pack_phase_signature, prefetch_share
from dovetail.targets.cpu.conv.policy import tiles_of
from dovetail.targets.cpu.conv.register_tile import (
    Corner,
    RegisterTile,
    Results,
    transpose_sums,
    write_prefetched_rows,
    write_transposed,
)
from dovetail.targets.cpu.conv.taps import each_tap


@dataclass(frozen=True, slots=True)
class FewPixelsArgs(FewPixelsWindow):
    """`parts` tiles of `part` pixels each share an image; a piece is some channels; `padded` says whether there is
    anything around the image, which then has to be copied."""

    padded: I64
    r_image: I64
    taps: Region
    """Offsets of taps."""
    positions: Region
    """Offsets of pixels."""
    sums: Region
    rows: Region
    copy: Region
    """The image with its padding, where it has to be copied."""


def arguments(epilogue: Epilogue) -> Arguments[FewPixelsArgs]:
    """The arguments with or without bias and residual."""
    return arguments_of(FewPixelsArgs, epilogue, "r_image")


def forms_of(device: CpuDevice) -> tuple[tuple[int, int], ...]:
    """Register tiles: vectors of filters, and pixels."""
    return tiles_of(device).few_pixels


def least_waste(device: CpuDevice, pixels: int) -> tuple[int, int]:
    """The register tile that wastes least for a number of pixels."""
    return min(forms_of(device), key=lambda form: -(-pixels // form[1]) * form[1])


def few_pixels_code(tile: RegisterTile) -> KernelCode:
    """The kernel."""
    shared = [transpose_sums(tile), pack_phase(tile.device), register_tile(tile)]
    return assemble("small_conv", [_kernel(tile)], shared)


def _signature(tile: RegisterTile) -> Signature:
    name = f"small_tile.{tile.device.lanes}.{tile.filters}.{tile.pixels}{'.point' if tile.point else ''}"
    return Signature(
        name,
        (
            Parameter("ptr", "w", "noalias readonly"), Parameter("ptr", "x", "noalias readonly"),
            Parameter("i64", "plane"), Parameter("ptr", "offsets", "noalias readonly"), Parameter("i64", "taps"),
            Parameter("i64", "channels"), Parameter("ptr", "where", "noalias readonly"),
            Parameter("ptr", "sums", "noalias"), Parameter("i1", "first"),
        ),
    )  # fmt: skip


def register_tile(tile: RegisterTile) -> Function:
    """The register tile: adds a piece of the channels to the accumulators at `sums`, or to nothing."""
    t = VectorBuilder(tile.device)
    spots = [(i, j) for j in range(tile.pixels) for i in range(tile.filters)]
    positions = [t.load_i64(t.ptr_add(Ptr("%where"), 8 * j)) for j in range(tile.pixels)]
    # Carried are the channel, pointers into weights and image, and the accumulators.
    with t.repeat([0], [Ptr("%w"), Ptr("%x")], [ZERO] * len(spots)) as state:
        each_tap(t, state, lambda tap, x: _accumulate(t, tile, tap, x, positions), once=tile.point)
        state.pointers[1] = t.ptr_add(state.pointers[1], I64("%plane"))
        state.integers[0] = t.following(state.integers[0])
        state.again = t.icmp("slt", state.integers[0], I64("%channels"))
    for (i, j), x in zip(spots, state.vectors, strict=True):
        # A piece is summed by itself and then added: two short sums round less than a long one.
        here = t.ptr_add(Ptr("%sums"), (j * tile.filters + i) * t.bytes)
        t.store(t.select_vec(I1("%first"), x, t.fadd(t.load(here), x)), here)
    return t.function(_signature(tile))


def _accumulate(t: VectorBuilder, tile: RegisterTile, state: Carried, x: Ptr, positions: Sequence[I64]) -> None:
    """Add one tap of one channel."""
    w = state.pointers[0]
    weights = [t.load(t.ptr_add(w, t.bytes * i)) for i in range(tile.filters)]
    found: list[Vec] = []
    for j, position in enumerate(positions):
        seen = t.load_splat(t.ptr_add(x, position))
        held = state.vectors[j * tile.filters : (j + 1) * tile.filters]
        found += [t.fma(weight, seen, total) for weight, total in zip(weights, held, strict=True)]
    state.pointers[0] = t.ptr_add(w, t.bytes * tile.filters)
    state.vectors[:] = found


def _kernel(tile: RegisterTile) -> Function:
    """The tiles from `begin` to before `end`."""
    t = VectorBuilder(tile.device)
    declared = arguments(tile.epilogue)
    a = declared.load(t, WORDS, SCRATCH)
    target = RowTarget.of(writer_of(t, declared, tile.epilogue, a.y), a.rows)
    padded = t.icmp("ne", a.padded, 0)
    reach_rows = _reach(t, a.out_height, a.stride_rows, a.window_rows, a.dilation_rows)
    reach_columns = _reach(t, a.out_width, a.stride_columns, a.window_columns, a.dilation_columns)
    copied = t.mul(t.mul(reach_rows, reach_columns), 4)
    taps = t.mul(a.window_rows, a.window_columns)
    row_step = t.select_int(padded, t.mul(reach_columns, 4), a.row_step)
    column_step = t.select_int(padded, 4, a.column_step)
    plane = t.select_int(padded, copied, a.channel_step)
    with t.loop(0, a.window_rows) as i, t.loop(0, a.window_columns) as j:
        down = t.mul(t.mul(i, a.dilation_rows), row_step)
        offset = t.add(down, t.mul(t.mul(j, a.dilation_columns), column_step))
        t.store_i64(offset, t.element(a.taps, "i64", t.add(t.mul(i, a.window_columns), j)))
    blocks = t.ceil_div(a.filters, tile.block)
    with t.loop(BEGIN, END) as number:
        # Keep the pixel-to-thread mapping fixed across layers: inputs are in that core's cache.
        filter_block, left = t.srem(number, blocks), t.sdiv(number, blocks)
        part, image_group = t.srem(left, a.parts), t.sdiv(left, a.parts)
        group, image = t.srem(image_group, a.groups), t.sdiv(image_group, a.groups)
        source = t.ptr_add(t.ptr_add(a.x, t.mul(image, a.image_step)), t.mul(group, a.group_step))
        fresh = once_for(t, SCRATCH, 0, image_group)
        with t.when(t.and_(fresh, padded)), t.loop(0, a.channels) as channel:
            onto = t.ptr_add(a.copy, t.mul(channel, copied))
            of = t.ptr_add(source, t.mul(channel, a.channel_step))
            t.call(
                pack_phase_signature(t.lanes), of, onto, a.height, a.width, a.row_step, a.column_step, a.column_step,
                1, 1, t.sub(0, a.above), t.sub(0, a.before), reach_rows, reach_columns, t.mul(reach_columns, 4),
            )  # fmt: skip
        seen = t.select_ptr(padded, a.copy, source)
        start = t.mul(part, a.part)
        count = t.smin(a.part, t.sub(a.pixels, start))
        tiles = t.ceil_div(count, tile.pixels)
        with t.when(once_for(t, SCRATCH, 1, part)), t.loop(0, t.mul(tiles, tile.pixels)) as one:
            # After the last pixel the last one is computed again.
            pixel = t.add(start, t.smin(one, t.sub(count, 1)))
            down = t.mul(t.mul(t.sdiv(pixel, a.out_width), a.stride_rows), row_step)
            across = t.mul(t.mul(t.srem(pixel, a.out_width), a.stride_columns), column_step)
            t.store_i64(t.add(down, across), t.element(a.positions, "i64", one))
        packed = t.add(t.mul(group, blocks), filter_block)
        corner = Corner(image, group, packed, t.mul(filter_block, tile.block), start, count)
        results = _results_at(t, a, corner, image_group)
        _pieces(t, tile, a, corner, seen, plane, taps, tiles, results)
        finish = Results(a.b, a.r, a.r_image, a.filters, a.pixels, target)
        write_transposed(t, tile, finish, corner, a.sums, results)
    return kernel_function(t)


def _reach(t: VectorBuilder, out: I64, stride: I64, window: I64, dilation: I64) -> I64:
    """How much of an axis all pixels see."""
    return t.add(t.mul(t.sub(out, 1), stride), t.add(t.mul(t.sub(window, 1), dilation), 1))


def _results_at(t: VectorBuilder, a: FewPixelsArgs, at: Corner, image_group: I64) -> Ptr:
    """The first result of a tile."""
    channel = t.add(t.mul(image_group, a.filters), at.first_filter)
    return t.ptr_add(a.y, t.add(t.mul(channel, t.mul(a.pixels, 4)), t.mul(at.start, 4)))


def _pieces(
    t: VectorBuilder,
    tile: RegisterTile,
    a: FewPixelsArgs,
    at: Corner,
    seen: Ptr,
    plane: I64,
    taps: I64,
    tiles: I64,
    results: Ptr,
) -> None:
    """Go through the channels piece by piece, and through the pixels register tile by register tile."""
    row: Int = 4 * tile.block
    weights = t.ptr_add(a.w, t.mul(t.mul(at.packed, t.mul(a.channels, taps)), row))
    with t.loop(0, t.ceil_div(a.channels, a.piece)) as piece:
        first = t.mul(piece, a.piece)
        some = t.smin(a.piece, t.sub(a.channels, first))
        w = t.ptr_add(weights, t.mul(t.mul(first, taps), row))
        size = t.mul(t.mul(a.piece, taps), row)
        x = t.ptr_add(seen, t.mul(first, plane))
        is_first = t.icmp("eq", piece, 0)
        is_last = t.icmp("eq", t.add(first, some), a.channels)
        with t.loop(0, tiles) as number:
            begin = t.mul(number, tile.pixels)
            there = t.element(a.positions, "i64", begin)
            onto = t.ptr_add(a.sums, t.mul(begin, row))
            prefetch_share(t, t.ptr_add(w, size), size, number, tiles)
            if tile.epilogue.rows is None:
                with t.when(is_last):
                    own = t.smin(tile.block, t.sub(a.filters, at.first_filter))
                    write_prefetched_rows(t, results, own, t.mul(a.pixels, 4), t.mul(begin, 4))
            t.call(_signature(tile), w, x, plane, a.taps, taps, some, there, onto, is_first)
