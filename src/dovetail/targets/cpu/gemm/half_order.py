"""One row times f16 weights with NEON, whose instructions stay in the order they are written in.

Both ways of widening and all multiply-adds together take as long as two pipes need for them: a step is widened among
the products of the step before, and lines are prefetched from far into L2 and from near into L1. Sums have the order
that they have in every tile.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

from dovetail.codegen.llvm.function import Signature
from dovetail.codegen.llvm.handles import I64, Ptr
from dovetail.codegen.llvm.kernel import shared_function
from dovetail.kernels.spec import SharedFunction
from dovetail.targets.cpu.gemm.half_kernel import LINE, STEPS, HalfKernel, Rows
from dovetail.targets.cpu.gemm.policy import HALVES


@cache
def rows_function(of: HalfKernel, rows: int, *, is_spread: bool) -> tuple[SharedFunction, Signature]:
    """Adds products of rows with a panel, or one that is spelled out, to sums, unless they are fresh.

    `(rows, pitch, panel, sums, stride, deep, fresh, ahead)`; `ahead` is prefetched while the panel is multiplied.
    """
    is_ordered = of.is_moved and rows == 1 and not is_spread
    return shared_function((RowInOrder if is_ordered else Rows)(of, rows, is_spread=is_spread).written())


class RowInOrder(Rows):
    """The function that multiplies one row with a part of a panel, and adds that to sums."""

    def multiply(self, panel: Ptr, factors: list[list[str]], found: dict[tuple[int, int], str]) -> None:
        """Add products of an iteration to sums."""
        waiting: list[Callable[[], None]] = []
        for part in range(STEPS):
            start = self.ptr_add(panel, 2 * part * self.columns)
            if 2 * part * self.columns % LINE == 0:
                self.prefetch(self.ptr_add(start, HALVES.prefetch_distance))
                self.prefetch(self.ptr_add(start, HALVES.far_distance), level=2)
            weights: dict[int, str] = {}
            loaded = [self.halves(start, pair, how="load volatile") for pair in range(self.vectors // 2)]
            for pair, (moved, other) in enumerate(loaded):
                self._widen(pair, moved, other, weights, waiting)
            waiting = [self._product(v, weights, factors[0][part], found) for v in range(self.vectors)]
        for product in waiting:
            product()

    def _widen(
        self, pair: int, moved: str, other: str, weights: dict[int, str], waiting: list[Callable[[], None]]
    ) -> None:
        """Widen two vectors, one each way, among products of the step before."""
        weights[2 * pair + 1] = self._placed(self.widened(other), self.floating)
        bits = self._placed(self.moved(moved), self.ints)
        for _ in range(min(2, len(waiting))):
            waiting.pop(0)()
        bits = self._placed(self.cleared(bits), self.ints)
        weights[2 * pair] = self.let(f"bitcast {self.ints} {bits} to {self.floating}")

    def _product(
        self, v: int, weights: dict[int, str], factor: str, found: dict[tuple[int, int], str]
    ) -> Callable[[], None]:
        def add() -> None:
            # Placed before and after: LLVM would otherwise compute it right after its weights.
            held = self._placed(found[0, v], self.floating)
            found[0, v] = self._placed(self.fma(weights[v], factor, held), self.floating)

        return add

    def _prefetch(self, panel: Ptr, step: I64) -> None:
        """Steps prefetch a line each."""

    def _placed(self, x: str, kind: str) -> str:
        """The same numbers, computed before the next ones that are placed. No instruction comes of it."""
        return self.let(f'call {kind} asm sideeffect "", "=w,0"({kind} {x})')


__all__ = ["rows_function"]
