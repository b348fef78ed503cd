"""The table of schedules: each row serves some tile, and the one that is meant."""

from __future__ import annotations

import pytest

from dovetail.library.block_formats import FORMATS
from dovetail.targets.cpu.gemm.blocks import schedule
from dovetail.targets.cpu.gemm.blocks.kernel import BlockKernel, block_dot, is_in_floats
from dovetail.targets.cpu.gemm.blocks.schedule import SCHEDULES, few_rows, schedule_of
from tests.targets.cpu.gemm.test_block_code import MACHINES

NUMBERS = {row: number for number, row in enumerate(SCHEDULES)}
NAMES = (
    "nested row", "tile in order", "rows", "nested", "six bits", "any order", "tile of blocks", "wide row", "by group",
)  # fmt: skip


def _kernel(name: str, machine: str, *, exact: bool) -> BlockKernel:
    here, _ = MACHINES[machine]
    dot = block_dot(here.device)
    assert dot is not None
    return BlockKernel.of(name, dot, exact=exact, registers=here.vector_registers)


def _named(source: schedule.CodeSource, of: BlockKernel, rows: int) -> str:
    return NAMES[NUMBERS[schedule_of(source, of, rows)]]


@pytest.mark.parametrize(
    ("name", "machine", "exact", "source", "rows", "wanted"),
    [
        ("q4_0", "neon", False, "panel", 1, "nested row"),
        ("q4_0", "neon", True, "panel", 1, "rows"),
        ("q8_0", "neon", True, "panel", 4, "tile in order"),
        ("q8_0", "neon", True, "panel", 2, "rows"),
        ("q4_k", "neon", False, "blocks", 1, "nested"),
        ("q4_k", "neon", True, "blocks", 1, "any order"),
        ("q6_k", "neon", False, "blocks", 1, "six bits"),
        ("q5_k", "neon", False, "blocks", 1, "any order"),
        ("q6_k", "neon", False, "blocks", 4, "tile of blocks"),
        ("q4_k", "avx512_vnni", True, "blocks", 1, "wide row"),
        ("q4_k", "avx512_vnni", True, "blocks", 3, "by group"),
        ("q4_0", "avx512_vnni", True, "panel", 4, "rows"),
    ],
)
def test_what_serves_a_tile(
    name: str, machine: str, exact: bool, source: schedule.CodeSource, rows: int, wanted: str
) -> None:
    assert _named(source, _kernel(name, machine, exact=exact), rows) == wanted


def test_every_schedule_serves_a_tile_of_some_machine() -> None:
    found: set[str] = set()
    for machine, (here, _) in MACHINES.items():
        dot = block_dot(here.device)
        assert dot is not None
        for name in FORMATS:
            for exact in (True, False):
                if is_in_floats(name, dot, exact=exact):
                    continue
                kernel = _kernel(name, machine, exact=exact)
                found |= {_named("panel", each, rows) for each in (kernel, kernel.for_many) for rows in each.tiles}
                if kernel.layout.is_expanded:
                    found |= {_named("blocks", kernel, rows) for rows in (1, *few_rows(kernel, 64))}
    assert found == set(NAMES)
