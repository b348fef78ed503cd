"""The micro-kernel of packed 1×1 convolutions: a few pixels times a panel of filters, accumulated in registers.

It goes through many channels at once, and prefetches as it goes: weights of the next panel, and the lines of its
results. Nothing waits for them, so that the loop does little but multiply.
"""

from __future__ import annotations

from collections.abc import Sequence

from dovetail.codegen.llvm.function import Function, Parameter, Signature
from dovetail.codegen.llvm.handles import I1, I64, Carried, Int, Ptr, Vec
from dovetail.codegen.llvm.vector import ZERO, VectorBuilder
from dovetail.kernels.device import CpuDevice
from dovetail.targets.cpu.conv.broadcast_tile import write_sums
from dovetail.targets.cpu.conv.policy import BLOCKS, tiles_of
from dovetail.targets.cpu.conv.register_tile import RegisterTile


def forms_of(device: CpuDevice) -> tuple[tuple[int, int], ...]:
    """Register tiles: vectors of filters, and pixels; they count on FMAs with memory operands."""
    return tiles_of(device).packed


def micro_kernel_signature(tile: RegisterTile, lines: int) -> Signature:
    """The micro-kernel that prefetches `lines` lines of what is `next` in each iteration."""
    marks = tile.epilogue.marks.replace(".relu", "")
    return Signature(
        f"panel_tile.{tile.device.lanes}.{tile.filters}.{tile.pixels}.{lines}{marks}",
        (
            Parameter("ptr", "w", "noalias readonly"), Parameter("ptr", "x", "noalias readonly"),
            Parameter("i64", "channels"), Parameter("ptr", "bias", "noalias readonly"),
            Parameter("ptr", "sums", "noalias"), Parameter("i1", "first"), Parameter("ptr", "next"),
            Parameter("ptr", "y"), Parameter("ptr", "r"), Parameter("i64", "area"),
        ),
    )  # fmt: skip


def prefetched_rows(tile: RegisterTile) -> int:
    """Filters whose results a register tile prefetches: half of them where two tiles share a line."""
    return tile.block if 8 * tile.pixels > tile.device.caches.line else tile.block // 2


def micro_kernel(tile: RegisterTile, lines: int) -> Function:
    """Sums over some channels, [pixel][filter].

    The `first` of them begin with the bias and prefetch a line of results and of the residual, filter by filter; later
    ones are added to what is there.
    """
    t = _MicroKernel(tile, lines)
    channels, first = I64("%channels"), I1("%first")
    starts: list[Vec] = [ZERO] * tile.filters
    if tile.epilogue.bias:
        given = [t.load(t.ptr_add(Ptr("%bias"), t.bytes * i)) for i in range(tile.filters)]
        starts = [t.select_vec(first, x, ZERO) for x in given]
    whole = t.mul(t.sdiv(channels, BLOCKS.packed.unroll), BLOCKS.packed.unroll)
    early = t.select_int(first, t.smin(whole, BLOCKS.packed.unroll * prefetched_rows(tile)), 0)
    residual = [Ptr("%r")] if tile.epilogue.residual else []
    pointers = [Ptr("%w"), Ptr("%x"), Ptr("%next"), Ptr("%y"), *residual]
    pointers, sums = t.walk(0, early, BLOCKS.packed.unroll, pointers, starts * tile.pixels)
    pointers, sums = t.walk(early, whole, BLOCKS.packed.unroll, pointers[:3], sums)
    _, sums = t.walk(whole, channels, 1, pointers[:2], sums)
    write_sums(t, sums)
    return t.function(micro_kernel_signature(tile, lines))


class _MicroKernel(VectorBuilder):
    """Loops over channels."""

    def __init__(self, tile: RegisterTile, lines: int) -> None:
        super().__init__(tile.device)
        self.tile, self.prefetched = tile, lines

    def walk(
        self, first: Int, end: Int, steps: int, pointers: Sequence[Ptr], sums: Sequence[Vec]
    ) -> tuple[list[Ptr], list[Vec]]:
        """Go through channels, some in each iteration. Pointers are to weights, pixels, and lines to prefetch."""
        state = Carried(I64("0"), list(sums), list(pointers), [I64(str(first))])
        with self.guarded(self.icmp("slt", first, end), state), self.repeated(state):
            w, x, *ahead = state.pointers
            ahead = self._prefetch(ahead)
            wide, narrow = 4 * self.tile.block, 4 * self.tile.pixels
            held = state.vectors
            for step in range(steps):
                held = self._accumulate(
                    self.ptr_add(w, step * wide),
                    self.ptr_add(x, step * narrow),
                    held,
                    short=self._is_short(len(pointers)),
                )
            state.vectors[:] = held
            state.pointers[:] = [self.ptr_add(w, steps * wide), self.ptr_add(x, steps * narrow), *ahead]
            state.integers[0] = I64(self.let(f"add nuw nsw i64 {state.integers[0]}, {steps}"))
            state.again = self.icmp("slt", state.integers[0], end)
        return state.pointers, state.vectors

    def _prefetch(self, ahead: Sequence[Ptr]) -> list[Ptr]:
        """Prefetch lines; those of the next iteration."""
        found: list[Ptr] = []
        for pointer in ahead[:1]:
            for line in range(self.prefetched):
                self.prefetch(self.ptr_add(pointer, line * self.device.caches.line), level=2)
            found.append(self.ptr_add(pointer, self.prefetched * self.device.caches.line))
        for for_write, pointer in zip((True, False), ahead[1:], strict=False):
            self.prefetch(pointer, for_write=for_write)
            found.append(self.ptr_add(pointer, I64("%area")))
        return found

    def _is_short(self, pointers: int) -> bool:
        """Whether a loop has no registers left for weights of the next channel, which LLVM loads early.

        With two vectors of filters, one in memory is a load for each product: the loop that prefetches a residual too
        has it so.
        """
        left = self.tile.device.registers - self.tile.pixels * self.tile.filters
        return left <= self.tile.filters + (2 if self.tile.filters > 2 or pointers > 4 else 0)

    def _accumulate(self, w: Ptr, x: Ptr, sums: Sequence[Vec], *, short: bool) -> list[Vec]:
        """Add one channel. Where registers are short, the last weights are memory operands."""
        tile, filters = self.tile, self.tile.filters
        weights = [self.load(self.ptr_add(w, self.bytes * i)) for i in range(filters - short)]
        found: list[Vec] = []
        for pixel in range(tile.pixels):
            seen = self.load_splat(self.ptr_add(x, 4 * pixel))
            own = sums[pixel * filters : (pixel + 1) * filters]
            found += [self.fma(weight, seen, total) for weight, total in zip(weights, own, strict=False)]
            if short:
                found.append(self.fma_memory(seen, self.ptr_add(w, self.bytes * (filters - 1)), own[-1]))
        return found
