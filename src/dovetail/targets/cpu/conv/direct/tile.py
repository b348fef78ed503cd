"""The register tile of direct convolution: filters by vectors of columns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache

from dovetail.codegen.llvm.function import Function, Parameter, Signature
from dovetail.codegen.llvm.handles import I1, I64, Carried, Ptr, Vec
from dovetail.codegen.llvm.kernel import one_of
from dovetail.codegen.llvm.vector import ZERO, VectorBuilder
from dovetail.dataclass import dataclass
from dovetail.kernels.device import CpuDevice
from dovetail.kernels.problems.epilogue import Epilogue
from dovetail.targets.cpu.conv.epilogue import activate
from dovetail.targets.cpu.conv.policy import BLOCKS, tiles_of
from dovetail.targets.cpu.conv.taps import each_tap


@dataclass(frozen=True, slots=True)
class DirectTile:
    """A register tile with pixels in lanes: filters by vectors of columns, and what becomes of a sum."""

    device: CpuDevice
    filters: int
    vectors: int
    """Vectors of columns, at most."""
    epilogue: Epilogue
    point: bool
    """Whether the window has one tap."""
    zero_stuffed: bool = False
    """Whether there are zeros between the pixels, as a transposed convolution has them."""
    packs: bool = False
    """Whether filters are those of a run, which each thread packs for itself."""

    @staticmethod
    def of(
        device: CpuDevice, filters: int, epilogue: Epilogue, point: bool = False, zero_stuffed: bool = False
    ) -> DirectTile:
        """As many accumulators as registers hold next to their operands, with filters cut evenly: 12 are 6 and 6."""
        shape = tiles_of(device)
        tiles = -(-filters // shape.direct_filters)
        rows = -(-filters // tiles)
        vectors = max(1, min(BLOCKS.direct.most_vectors, (device.registers - shape.direct_spare) // rows))
        return DirectTile(device, rows, vectors, epilogue, point, zero_stuffed)

    @property
    def summing(self) -> DirectTile:
        """The register tile, which leaves the residual, the activation after it and steps to the finished row."""
        return replace(self, epilogue=replace(self.epilogue.before_residual, rows=None), packs=False)


@lru_cache(64)
def register_tiles(tile: DirectTile) -> Function:
    """Register tiles of every width, as one function that is told which."""
    members = {vectors: register_tile(tile, vectors) for vectors in range(1, tile.vectors + 1)}
    return one_of(tile_signature(tile).name, members)


def tile_signature(tile: DirectTile, vectors: int | None = None) -> Signature:
    """One register tile, or with `vectors` None the function that is told how many."""
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


def register_tile(tile: DirectTile, vectors: int) -> Function:
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


def _accumulate(t: VectorBuilder, tile: DirectTile, state: Carried, x: Ptr, vectors: int) -> None:
    """Add one tap of one channel."""
    w = state.pointers[0]
    seen = [t.load(t.ptr_add(x, t.bytes * j)) for j in range(vectors)]
    found: list[Vec] = []
    for i in range(tile.filters):
        weight = t.load_splat(t.ptr_add(w, 4 * i))
        held = state.vectors[i * vectors : (i + 1) * vectors]
        found += [t.fma(weight, pixels, total) for pixels, total in zip(seen, held, strict=True)]
    state.pointers[0] = t.ptr_add(w, 4 * tile.filters)
    state.vectors[:] = found


def _store_sums(t: VectorBuilder, tile: DirectTile, sums: Sequence[Vec], vectors: int, first: I1, last: I1) -> None:
    """Add a piece to the sums before it, and activate them after the last piece. A single piece reads no sums."""
    act = tile.epilogue.in_registers
    rows = [t.ptr_add(Ptr("%y"), t.mul(I64("%pitch"), i)) for i in range(tile.filters)]
    spots = [t.ptr_add(row, t.bytes * j) for row in rows for j in range(vectors)]

    def single() -> None:
        for spot, piece in zip(spots, sums, strict=True):
            t.store(activate(t, act, piece), spot)

    def added() -> None:
        for spot, piece in zip(spots, sums, strict=True):
            total = t.select_vec(first, piece, t.fadd(t.load(spot), piece))
            done = activate(t, act, total)
            t.store(total if done == total else t.select_vec(last, done, total), spot)

    t.either(t.and_(first, last), single, added)
