"""The register tile of contiguous pixels: some vectors of filters and a few pixels, with embedded broadcasts.

A step has one pointer for all pixels; half of the activations are embedded-broadcast operands of FMAs. Pixels may be
the patches of Winograd's scheme, whose channels are equally far apart, or see the taps of a window, which are listed.
"""

from __future__ import annotations

from collections.abc import Sequence

from dovetail.codegen.llvm.function import Function, Parameter, Signature
from dovetail.codegen.llvm.handles import I1, I64, Int, Ptr, Vec
from dovetail.codegen.llvm.kernel import one_of
from dovetail.codegen.llvm.vector import ZERO, VectorBuilder
from dovetail.dataclass import dataclass
from dovetail.kernels.device import CpuDevice
from dovetail.kernels.problems.epilogue import Epilogue
from dovetail.targets.cpu.conv.policy import tiles_of
from dovetail.targets.cpu.conv.register_tile import RegisterTile


def broadcast_tile_of(device: CpuDevice, filters: int, epilogue: Epilogue, *, equidistant: bool) -> RegisterTile:
    """The register tile that wastes least lanes; `equidistant` says whether steps are equally far apart."""
    tiles = [RegisterTile(device, *form, epilogue, equidistant) for form in tiles_of(device).broadcast]
    return min(tiles, key=lambda tile: -(-filters // tile.block) * tile.block)


def broadcast_tiles(tile: RegisterTile) -> Function:
    """Register tiles of every number of pixels, as one function that is told how many."""
    members = {pixels: broadcast_tile(tile, pixels) for pixels in range(1, tile.pixels + 1)}
    return one_of(_signature(tile).name, members)


def _signature(tile: RegisterTile, pixels: int | None = None) -> Signature:
    """One register tile, or with `pixels` None the function that is told how many."""
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
class Tiles:
    """How pixels are cut into register tiles, as equal as they can be: how many, and how many pixels they have."""

    count: I64
    narrow: I64
    wider: I64
    """Tiles that have one pixel more."""

    @staticmethod
    def of(t: VectorBuilder, tile: RegisterTile, pixels: Int) -> Tiles:
        count = t.ceil_div(pixels, tile.pixels)
        return Tiles(count, t.sdiv(pixels, count), t.srem(pixels, count))

    def begin(self, t: VectorBuilder, number: I64) -> I64:
        """The first pixel of a register tile."""
        return t.add(t.mul(number, self.narrow), t.smin(number, self.wider))


def write_broadcast_tile(
    t: VectorBuilder,
    tile: RegisterTile,
    of: Tiles,
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
