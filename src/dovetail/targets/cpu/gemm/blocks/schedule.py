"""Which schedule multiplies what: by where codes come from, ISA, how codes are stored, precision and rows."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Literal, TypeAlias

from dovetail.codegen.llvm.function import Function, Signature
from dovetail.codegen.llvm.kernel import shared_function
from dovetail.dataclass import dataclass
from dovetail.kernels.spec import SharedFunction
from dovetail.targets.cpu.gemm.blocks.in_order import nested_row, tile_of_blocks, tile_of_panel
from dovetail.targets.cpu.gemm.blocks.kernel import FAST, BlockKernel
from dovetail.targets.cpu.gemm.blocks.one_row import AnyOrder, Nested, SixBits
from dovetail.targets.cpu.gemm.blocks.rows import RowsByGroup, RowsFunction, WideRow

CodeSource: TypeAlias = Literal["panel", "blocks"]
"""Panels of one group for each scale, in memory or expanded in L1; or blocks of two levels, as they are in memory."""
MOST_ON_NEON = 4
"""Rows that are not worth expanding blocks for: five and more have several tiles, which would each unpack them."""
_MANY = 1 << 30


@dataclass(frozen=True, slots=True)
class GemvSchedule:
    """A way to multiply rows of limbs with codes, and what it is for."""

    source: CodeSource
    isa: Literal["neon", "wide", "any"]
    codes: Literal["nested", "whole", "any"]
    """How codes are stored: two in a byte that is multiplied as it is, six bits in whole, or in any way."""
    precision: Literal["fast", "any"]
    least: int
    most: int
    """Rows of a tile."""
    write: Callable[[BlockKernel, int], Function]

    def serves(self, source: CodeSource, of: BlockKernel, rows: int) -> bool:
        read = of.layout if source == "panel" else of.packed
        codes = "bytes" if read.is_expanded else read.order
        isa = "neon" if of.dot.by_lane and not of.emulated else "wide"
        return (
            source == self.source
            and self.isa in (isa, "any")
            and self.codes in (codes, "any")
            and (self.precision == "any" or of.limbs == FAST)
            and self.least <= rows <= self.most
        )


SCHEDULES = (
    GemvSchedule("panel", "neon", "nested", "fast", 1, 1, lambda of, _: nested_row(of)),
    # Fewer rows leave no registers for the codes of four steps of all their vectors.
    GemvSchedule("panel", "neon", "any", "any", 4, _MANY, tile_of_panel),
    GemvSchedule("panel", "any", "any", "any", 1, _MANY, lambda of, rows: RowsFunction(of, rows).written()),
    GemvSchedule("blocks", "neon", "nested", "fast", 1, 1, lambda of, _: Nested(of).written()),
    GemvSchedule("blocks", "neon", "whole", "fast", 1, 1, lambda of, _: SixBits(of).written()),
    GemvSchedule("blocks", "neon", "any", "any", 1, 1, lambda of, _: AnyOrder(of).written()),
    GemvSchedule("blocks", "neon", "any", "any", 2, MOST_ON_NEON, tile_of_blocks),
    GemvSchedule("blocks", "wide", "any", "any", 1, 1, lambda of, _: WideRow(of).written()),
    GemvSchedule("blocks", "wide", "any", "any", 2, _MANY, lambda of, rows: RowsByGroup(of, rows).written()),
)
"""The first row that serves a tile."""


def schedule_of(source: CodeSource, of: BlockKernel, rows: int) -> GemvSchedule:
    """The schedule of a tile of rows."""
    return next(row for row in SCHEDULES if row.serves(source, of, rows))


@cache
def panel_function(of: BlockKernel, rows: int) -> tuple[SharedFunction, Signature]:
    """Adds products of rows of limbs with a panel to sums: `(limbs, pitch, panel, sums, stride, groups, fresh)`.

    A tile that prefetches rows has another argument for them.
    """
    return shared_function(schedule_of("panel", of, rows).write(of, rows))


@cache
def blocks_function(of: BlockKernel, rows: int) -> tuple[SharedFunction, Signature]:
    """Products of rows of limbs with a whole panel of blocks of two levels.

    `(limbs, pitch, panel, sums, stride, blocks)`; of one row `(limbs, panel, sums, blocks)`, which sums of its groups
    follow where it takes lows away, too.
    """
    return shared_function(schedule_of("blocks", of, rows).write(of, rows))


def few_rows(of: BlockKernel, most: int) -> tuple[int, ...]:
    """Rows of tiles for blocks of at most `most` rows: where these are few, their number is known before a run."""
    few = MOST_ON_NEON if of.dot.by_lane else of.rows_of_all_vectors
    return (most,) if 2 <= most <= few else tuple(range(2, few + 1)) if most > few else ()


def prefetches_rows(of: BlockKernel, rows: int) -> bool:
    """Whether a tile prefetches the limbs of another one: panels that many rows share are expanded in L1."""
    return schedule_of("panel", of, rows).write is tile_of_panel and of.layout.is_expanded


__all__ = ["blocks_function", "few_rows", "panel_function", "prefetches_rows"]
