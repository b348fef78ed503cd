"""One row with NEON where bytes have two codes: low halves of a group are multiplied among the bytes of another.

A sum of low halves is complete before it is moved up and whole bytes are added to it, and all four sums of a group wait
then: queues of a Neoverse N1 hold few instructions. So the bytes of a group are multiplied in turn with the low halves
of the group that follows. Instructions stay in the order they are written in, as in `block_order.py`.
"""

from __future__ import annotations

from dovetail.codegen.llvm.handles import I64, Phi, Ptr
from dovetail.dataclass import dataclass
from dovetail.targets.cpu.gemm.block_kernel import LINE, Rows
from dovetail.targets.cpu.gemm.block_limbs import BlockKernel
from dovetail.targets.cpu.gemm.phi_loop import end_loop
from dovetail.targets.cpu.gemm.policy import BLOCKS

Cell = tuple[int, int]
"""A row, the only one, and a vector of columns."""


@dataclass(frozen=True, slots=True)
class _Group:
    """Where a group is."""

    codes: Ptr
    x: Ptr


class NestedRow(Rows):
    """The function that multiplies one row with a panel."""

    def __init__(self, of: BlockKernel) -> None:
        super().__init__(of, 1)
        assert self.moves_sums and self.passes == 1, "all columns of a panel are multiplied at once"
        self.half = of.group // 8
        """Steps along k of low halves, and of whole bytes."""

    def _along(self, panel: Ptr, codes: Ptr, ahead: Ptr, held: dict[Cell, str]) -> dict[Cell, str]:
        """Go along k: the sums of each vector of columns."""
        of = self.of
        early, limbs = self._started(self.limbs[0])
        for step in range(self.half):
            for cell in self.cells:
                self._add_low(_Group(codes, self.limbs[0]), early, limbs, step, cell)
        early = self._moved_up(early)
        before, along, after = self.block, self.fresh("along"), self.fresh("done")
        self.emit(f"br label %{along}")
        self.label(along)
        group, panel_at, codes_at, x_at = self.phi("i64"), self.phi("ptr"), self.phi("ptr"), self.phi("ptr")
        sums = {cell: self.phi(self.floats) for cell in self.cells}
        lows = {cell: self.phi(self.ints) for cell in self.cells}
        following = I64(self.let(f"add nuw nsw i64 {group.name}, 1"))
        goes_on = self.icmp("slt", following, I64("%groups"))
        here = _Group(Ptr(codes_at.name), Ptr(x_at.name))
        # After the last group there is none: its own low halves are multiplied again.
        then = _Group(
            self.ptr_add(here.codes, self.select_int(goes_on, of.layout.group_bytes, 0)),
            self.opaque(self.ptr_add(here.x, self.select_int(goes_on, of.group_bytes, 0))),
        )
        names = {cell: phi.name for cell, phi in lows.items()}
        totals, late = self._two_groups(here, then, names, Ptr(panel_at.name))
        found = self._scaled(here, Ptr(panel_at.name), totals, {cell: phi.name for cell, phi in sums.items()})
        late = self._moved_up(late)
        carried: list[tuple[Phi, object, object]] = [
            (group, 0, following),
            (panel_at, panel, self.ptr_add(Ptr(panel_at.name), of.layout.group_bytes)),
            (codes_at, codes, then.codes),
            (x_at, self.limbs[0], then.x),
            *[(phi, held[cell], found[cell]) for cell, phi in sums.items()],
            *[(phi, early[cell], late[cell]) for cell, phi in lows.items()],
        ]
        end_loop(self, carried, goes_on, before=before, along=along, after=after)
        return found

    def _two_groups(
        self, here: _Group, then: _Group, lows: dict[Cell, str], panel: Ptr
    ) -> tuple[dict[Cell, str], dict[Cell, str]]:
        """Sums of a group with its whole bytes, and of the low halves of the one that follows."""
        of, totals = self.of, dict(lows)
        limbs = self._four_steps(here.x, self.half)
        late, following = self._started(then.x)
        lines = [self.ptr_add(panel, BLOCKS.nested_distance + line) for line in range(0, of.layout.group_bytes, LINE)]
        for step in range(self.half):
            for line in lines[step * len(lines) // self.half : (step + 1) * len(lines) // self.half]:
                self.prefetch(line)
            for cell in self.cells:
                whole = self.codes(here.codes, cell[1], of.layout.words.codes[0][self.half + step])
                totals[cell] = self.dot_by_lane(totals[cell], whole, limbs, step)
                self._add_low(then, late, following, step, cell)
        return totals, late

    def _scaled(self, here: _Group, panel: Ptr, totals: dict[Cell, str], held: dict[Cell, str]) -> dict[Cell, str]:
        """Sums plus those of a group times its scales."""
        found: dict[Cell, str] = {}
        for cell, total in totals.items():
            scales, joined = self.scales(panel, cell[1]), self.joined([total], here.x)
            found[cell] = self.placed(self.added(joined, scales, here.x, held[cell]), self.floats)
        if self.of.layout.has_low:
            return self._with_lows(self.ptr_add(panel, self.of.layout.scale_bytes), [here.x], found)
        return found

    def _started(self, x: Ptr) -> tuple[dict[Cell, str], str]:
        """What the sums of a group start with, and its numbers for low halves."""
        starts = {cell: self.number(self.ptr_add(x, self.start_at(0)), "i32") for cell in self.cells}
        return starts, self._four_steps(x, 0)

    def _add_low(self, of: _Group, sums: dict[Cell, str], limbs: str, step: int, cell: Cell) -> None:
        low = self.placed(self.codes(of.codes, cell[1], self.of.layout.words.codes[0][step]), self.raw)
        sums[cell] = self.dot_by_lane(sums[cell], low, limbs, step)

    def _moved_up(self, sums: dict[Cell, str]) -> dict[Cell, str]:
        return {cell: self.placed(self.sixteen_times(held), self.ints) for cell, held in sums.items()}

    def _four_steps(self, x: Ptr, first: int) -> str:
        """Numbers of a row for four steps."""
        at = self.ptr_add(x, self.of.limbs_at + 4 * first)
        return self.let(f"load volatile {self.ints}, ptr {at}, align 16")


__all__ = ["NestedRow"]
