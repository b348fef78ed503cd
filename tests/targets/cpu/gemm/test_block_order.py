"""Tiles whose instructions stay in the order in which they are written."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from dovetail.targets.cpu.gemm.blocks.kernel import BlockKernel, block_dot
from dovetail.targets.cpu.gemm.blocks.schedule import panel_function, prefetches_rows
from tests.kernels.machines import code_for, loops
from tests.targets.cpu.gemm.test_block_code import MACHINES

_ARITHMETIC = ("sdot", "fm", "fadd", "fcvt")


def hot_loops(name: str, *, exact: bool) -> Iterator[list[str]]:
    """The instructions of the hottest loop of each tile in order."""
    here, instruction = MACHINES["neon"]
    dot = block_dot(here.device)
    assert dot is not None
    kernel = BlockKernel.of(name, dot, exact=exact, registers=here.vector_registers).for_many
    for rows in kernel.tiles:
        if rows >= 4:
            code = code_for(here, panel_function(kernel, rows)[0].text, optimize=False)
            body = max(loops(code), key=lambda body: body.count(instruction))
            yield [line.split()[0] for line in body.splitlines() if line[:1].isspace() and line.strip()[0].isalpha()]


@pytest.mark.parametrize("exact", [True, False])
@pytest.mark.parametrize("name", ["q8_0", "q4_0", "q4_k"])
def test_loads_are_among_products(name: str, exact: bool) -> None:
    """LLVM would load what a group needs at once: 19 instructions and more without a product."""
    for body in hot_loops(name, exact=exact):
        waits = longest = 0
        for instruction in body:
            waits = 0 if instruction.startswith(_ARITHMETIC) else waits + 1
            longest = max(longest, waits)
        assert body.count("sdot") >= 64 and longest < 16


@pytest.mark.parametrize("rows", [4, 8])
def test_bytes_with_two_codes_are_loaded_once(rows: int) -> None:
    """Bytes are multiplied as they are, and then moved up in their registers, among products."""
    here, instruction = MACHINES["neon"]
    dot = block_dot(here.device)
    assert dot is not None
    kernel = BlockKernel.of("q4_0", dot, exact=False, registers=here.vector_registers)
    code = code_for(here, panel_function(kernel, rows)[0].text, optimize=False)
    body = max(loops(code), key=lambda body: body.count(instruction))
    vectors = 8 // rows
    # Of each group a row has two vectors of limbs, and a number before and after its products with four columns.
    assert len(re.findall(r"\tldr\tq", body)) == 4 * vectors + 2 * rows + 2 * 8
    assert body.count("\tshl\t") == body.count("\teor\t") == 4 * vectors
    words = "".join(["." if word == instruction else "m" for word in re.findall(rf"\t({instruction}|shl)\t", body)])
    assert "mmm" not in words, "products are between steps"


@pytest.mark.parametrize("name", ["q4_0", "q6_k"])
def test_tiles_are_told_which_rows_to_prefetch(name: str) -> None:
    """Those after the last tile may never have been written: a prefetch finds no page there, and takes 100 cycles."""
    here, _ = MACHINES["neon"]
    dot = block_dot(here.device)
    assert dot is not None
    kernel = BlockKernel.of(name, dot, exact=False, registers=here.vector_registers).for_many
    assert prefetches_rows(kernel, 4) and not prefetches_rows(kernel, 2)
    function, signature = panel_function(kernel, 4)
    assert [parameter.name for parameter in signature.parameters][-1] == "following"
    starts = re.findall(r"(%\S+) = getelementptr i8, ptr %following", function.text)
    (start,) = starts
    assert f"[ {start}, " in function.text, "the first row that is prefetched"


@pytest.mark.parametrize("exact", [True, False])
def test_expanded_rows_prefetch_those_that_follow(exact: bool) -> None:
    """Limbs of the next tile come from L2, two rows of it in a pass of fast mode."""
    for body in hot_loops("q4_0", exact=exact):
        assert sum(instruction.startswith("prf") for instruction in body) == (3 if exact else 4)
