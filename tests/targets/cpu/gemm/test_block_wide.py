"""Few rows of blocks with two levels of scales in wide vectors: their bits, and their code."""

from __future__ import annotations

import numpy as np
import pytest

import dovetail
from dovetail import Graph
from dovetail.codegen.llvm.function import Signature
from dovetail.ir import leaf
from dovetail.ir.dim import symbol
from dovetail.ir.dtype import f32
from dovetail.ir.literal import Array
from dovetail.kernels.spec import SharedFunction
from dovetail.library.block_formats import FORMATS
from dovetail.settings import Precision
from dovetail.targets.cpu import backend
from dovetail.targets.cpu.gemm.blocks import product as blocks
from dovetail.targets.cpu.gemm.blocks.kernel import LINE, BlockKernel, block_dot
from dovetail.targets.cpu.gemm.blocks.schedule import blocks_function
from dovetail.targets.cpu.gemm.blocks.words import block_words
from tests.kernels.bytes import VNNI
from tests.kernels.machines import code_for, loops, written_to_stack
from tests.targets.cpu.gemm.test_block_code import MACHINES
from tests.targets.cpu.gemm.test_blocks import PAIRS, judged, rows, weights

K, N, NAME = 512, 40, "q4_k"
VPDPBUSD = MACHINES["avx512_vnni"][1]
TWO_LEVELS = [name for name in FORMATS if block_words(name).scales]


@pytest.mark.slow
@pytest.mark.parametrize("precision", [pytest.param("exact", marks=pytest.mark.exhaustive), "fast"])
def test_few_rows_have_the_bits_that_they_have_among_others(
    precision: Precision, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In plain vector code: a row alone is unpacked in registers, few read groups that are expanded, others blocks."""
    called: set[int] = set()

    def function(of: BlockKernel, rows: int) -> tuple[SharedFunction, Signature]:
        called.add(rows)
        return blocks_function(of, rows)

    device = PAIRS if precision == "fast" else VNNI
    monkeypatch.setattr(backend, "host_device", lambda: device)

    def reads_blocks(_: BlockKernel) -> bool:
        return True

    monkeypatch.setattr(blocks, "reads_blocks", reads_blocks)
    monkeypatch.setattr(blocks, "blocks_function", function)
    params: dict[str, Array] = {}
    graph = Graph.of({"y": leaf.input("x", f32[symbol("m"), K]) @ weights(params, "w", NAME, N, K)})
    program = dovetail.compile(graph, cache="off", precision=precision, threads=1).bind(params)
    some = rows(9, k=K)
    assert called == ({1} if precision == "fast" else {1, 2, 3, 4}), "these are the kernels of wide vectors"
    whole = program.run({"x": some})["y"]
    for count in (1, 2, 3, 4):
        found = [program.run({"x": some[i : i + count]})["y"] for i in range(0, 9, count)]
        assert np.concatenate(found).tobytes() == whole.tobytes()
    judged(graph, params, program, some, 2e-6 if precision == "exact" else 3e-2)


@pytest.mark.slow
@pytest.mark.parametrize("exact", [True, False])
@pytest.mark.parametrize("name", TWO_LEVELS)
def test_codes_stay_in_registers(name: str, exact: bool) -> None:
    """With AVX-512, where all lines of a block are prefetched while another one is multiplied."""
    kernel = _kernel(name, exact=exact)
    hottest = _hottest(blocks_function(kernel, 1))
    assert hottest.count(VPDPBUSD) == kernel.vectors * kernel.packed.block // 4 * kernel.limbs
    assert hottest.count("prefetch") == -(-kernel.packed.block_bytes // LINE)
    assert not written_to_stack(hottest)


@pytest.mark.slow
@pytest.mark.parametrize("exact", [True, False])
@pytest.mark.parametrize("name", TWO_LEVELS)
@pytest.mark.parametrize("count", [2, 4])
def test_products_of_few_rows_have_the_code_of_one_group(name: str, exact: bool, count: int) -> None:
    kernel = _kernel(name, exact=exact)
    packed, read = kernel.packed, kernel.layout
    hottest = _hottest(blocks_function(kernel, count))
    assert hottest.count(VPDPBUSD) == count * kernel.vectors * kernel.group // 4 * kernel.limbs
    assert hottest.count("prefetch") == -(-(packed.block_bytes // packed.groups) // LINE)
    # What is expanded is written, for any group and each vector, and no sum.
    expanded = packed.groups * kernel.vectors * (kernel.group // 4 + 1 + read.has_low)
    assert len(written_to_stack(hottest)) <= expanded


def _kernel(name: str, *, exact: bool) -> BlockKernel:
    here, _ = MACHINES["avx512_vnni"]
    dot = block_dot(here.device)
    assert dot is not None
    return BlockKernel.of(name, dot, exact=exact, registers=here.vector_registers)


def _hottest(function: tuple[SharedFunction, Signature]) -> str:
    code = code_for(MACHINES["avx512_vnni"][0], function[0].text, optimize=False)
    return max(loops(code), key=lambda body: body.count(VPDPBUSD))
