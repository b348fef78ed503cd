"""The register tile of few results: rows of results of some channels by vectors of filters, summed over pixels."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from dovetail.codegen.llvm.function import Function, Parameter, Signature
from dovetail.codegen.llvm.handles import I64, Carried, Ptr, Vec
from dovetail.codegen.llvm.kernel import one_of
from dovetail.codegen.llvm.vector import ZERO, VectorBuilder
from dovetail.dataclass import dataclass
from dovetail.kernels.device import CpuDevice
from dovetail.targets.cpu.conv.policy import BLOCKS, tiles_of


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
    """Register tiles of every number of lines, as one function that is told which."""
    return one_of(tile_signature(tile).name, {lines: register_tile(tile, lines) for lines in range(1, tile.lines + 1)})


def tile_signature(tile: FewResultsTile, lines: int | None = None) -> Signature:
    """One register tile, or with `lines` None the function that is told how many."""
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


__all__ = ["FewResultsTile", "register_tile", "register_tiles", "tile_signature"]
