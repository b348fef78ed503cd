"""One row of blocks with two levels of scales that wide vectors unpack in registers: its bits, and its code."""

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
from dovetail.targets.cpu import backend
from dovetail.targets.cpu.gemm import blocks
from dovetail.targets.cpu.gemm.block_kernel import LINE
from dovetail.targets.cpu.gemm.block_limbs import BlockKernel
from dovetail.targets.cpu.gemm.block_wide import wide_function
from dovetail.targets.cpu.gemm.block_words import block_words
from dovetail.targets.cpu.gemm.blocks import block_dot
from tests.kernels.bytes import VNNI
from tests.kernels.machines import code_for, loops, written_to_stack
from tests.targets.cpu.gemm.test_block_code import MACHINES
from tests.targets.cpu.gemm.test_blocks import PAIRS, judged, rows, weights

K, N, NAME = 512, 40, "q4_k"
TWO_LEVELS = [name for name in FORMATS if block_words(name).scales]


@pytest.mark.parametrize("precision", [pytest.param("exact", marks=pytest.mark.exhaustive), "fast"])
def test_one_row_has_the_bits_that_it_has_among_others(precision: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In plain vector code: alone a row is unpacked in registers, among others it reads expanded blocks."""
    called: list[BlockKernel] = []

    def one_row(of: BlockKernel) -> tuple[SharedFunction, Signature]:
        called.append(of)
        return wide_function(of)

    device = PAIRS if precision == "fast" else VNNI
    monkeypatch.setattr(backend, "host_device", lambda: device)

    def reads_blocks(_: BlockKernel) -> bool:
        return True

    monkeypatch.setattr(blocks, "reads_blocks", reads_blocks)
    monkeypatch.setattr(blocks, "wide_function", one_row)
    params: dict[str, Array] = {}
    graph = Graph.of({"y": leaf.input("x", f32[symbol("m"), K]) @ weights(params, "w", NAME, N, K)})
    program = dovetail.compile(graph, cache="off", precision=precision, threads=1).bind(params)
    some = rows(3, k=K)
    assert called, "the kernel of one row is that of wide vectors"
    whole = program.run({"x": some})["y"]
    assert np.concatenate([program.run({"x": some[i : i + 1]})["y"] for i in range(3)]).tobytes() == whole.tobytes()
    judged(graph, params, program, some[:1], 2e-6 if precision == "exact" else 3e-2)


@pytest.mark.parametrize("exact", [True, False])
@pytest.mark.parametrize("name", TWO_LEVELS)
def test_codes_stay_in_registers(name: str, exact: bool) -> None:
    """With AVX-512, where all lines of a block are prefetched while another one is multiplied."""
    here, instruction = MACHINES["avx512_vnni"]
    dot = block_dot(here.device)
    assert dot is not None
    kernel = BlockKernel.of(name, dot, exact=exact, registers=here.vector_registers)
    code = code_for(here, wide_function(kernel)[0].text, optimize=False)
    hottest = max(loops(code), key=lambda body: body.count(instruction))
    assert hottest.count(instruction) == kernel.vectors * kernel.packed.block // 4 * kernel.limbs
    assert hottest.count("prefetch") == -(-kernel.packed.block_bytes // LINE)
    assert not written_to_stack(hottest)
