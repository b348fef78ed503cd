"""Tiles of a few rows that unpack blocks with two levels of scales among their products."""

from __future__ import annotations

import re

import pytest

from dovetail import Graph
from dovetail.ir import leaf
from dovetail.ir.dim import symbol
from dovetail.ir.dtype import f32
from dovetail.ir.literal import Array
from dovetail.library.block_formats import FORMATS
from dovetail.targets.cpu.gemm.blocks.kernel import BlockKernel, block_dot
from dovetail.targets.cpu.gemm.blocks.schedule import MOST_ON_NEON, blocks_function, few_rows
from dovetail.targets.cpu.gemm.blocks.words import block_words
from tests.kernels.machines import code_for, loops, written_to_stack
from tests.targets.cpu.gemm.test_block_code import MACHINES, SDOT_NAME
from tests.targets.cpu.gemm.test_blocks import K, compiled, judged, needs_dot, rows, weights


def _kernel(name: str, machine: str, *, exact: bool) -> BlockKernel:
    here, _ = MACHINES[machine]
    dot = block_dot(here.device)
    assert dot is not None
    return BlockKernel.of(name, dot, exact=exact, registers=here.vector_registers)


def _tile(name: str, count: int, *, exact: bool) -> tuple[BlockKernel, str]:
    """The kernel of a format with NEON, and the loop that multiplies some rows."""
    kernel = _kernel(name, "neon", exact=exact)
    code = code_for(MACHINES["neon"][0], blocks_function(kernel, count)[0].text, optimize=False)
    return kernel, max(loops(code), key=lambda body: body.count(SDOT_NAME))


@pytest.mark.slow
@pytest.mark.parametrize("exact", [True, False])
@pytest.mark.parametrize("name", [name for name in FORMATS if block_words(name).scales])
def test_a_block_is_unpacked_once_for_all_rows(name: str, exact: bool) -> None:
    kernel, hottest = _tile(name, MOST_ON_NEON, exact=exact)
    packed = kernel.packed
    assert hottest.count(f"\t{SDOT_NAME}\t") == packed.block // 4 * kernel.limbs * MOST_ON_NEON
    # What all groups of a block share may wait on the stack, what a group needs may not.
    assert len(written_to_stack(hottest)) < packed.groups
    unpacks = len(re.findall(r"\t(?:and|bic|shl|ushr|sli|sri|eor|orr|add)\tv", hottest))
    assert unpacks < 5 * packed.block // 4, "as many as for one row"


@pytest.mark.slow
@pytest.mark.parametrize("count", [2, MOST_ON_NEON])
def test_multiply_adds_follow_each_other(count: int) -> None:
    """Each among products alone would take as long as two of them: those of two groups are one run, or nearly."""
    kernel, hottest = _tile("q6_k", count, exact=False)
    found = re.findall(rf"\t({SDOT_NAME}|fmla)\t", hottest)
    assert found.count("fmla") == 2 * count * kernel.packed.groups
    kinds = "".join(["s" if each == SDOT_NAME else "f" for each in found])
    apart = [run for run in re.split(r"s{6,}", kinds) if "f" in run]
    assert len(apart) <= kernel.packed.groups // 2


@pytest.mark.slow
def test_lines_are_prefetched_into_both_caches() -> None:
    kernel, hottest = _tile("q6_k", MOST_ON_NEON, exact=False)
    lines = -(-kernel.packed.block_bytes // kernel.vectors // 64)
    assert hottest.count("pldl1keep") == hottest.count("pldl2keep") == lines


def test_tiles_are_compiled_for_rows_that_a_run_can_have() -> None:
    for machine in ("neon", "avx512_vnni"):
        kernel = _kernel("q4_k", machine, exact=True)
        assert [few_rows(kernel, most) for most in (1, 2, 3, MOST_ON_NEON, 64)] == [(), (2,), (3,), (4,), (2, 3, 4)]
    # Where a tile of two rows has half of the vectors, a group would be expanded for each half.
    assert few_rows(_kernel("q4_k", "avx_vnni", exact=True), 64) == ()


@pytest.mark.slow
@needs_dot
@pytest.mark.parametrize("count", [2, 3, 4])
def test_a_number_of_rows_that_is_known_changes_no_bit(count: int) -> None:
    params: dict[str, Array] = {}
    by, given, found = weights(params, "w", "q6_k"), rows(count), list[bytes]()
    for size in (count, symbol("m")):
        graph = Graph.of({"y": leaf.input("x", f32[size, K]) @ by})
        program = compiled(graph, params)
        judged(graph, params, program, given)
        found.append(program.run({"x": given})["y"].tobytes())
    assert found[0] == found[1]
