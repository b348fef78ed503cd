"""Products with weights in blocks in f32: against float64, bits of rows however they are cut, and their code."""

from __future__ import annotations

import numpy as np
import pytest

from dovetail import Graph, library, ops
from dovetail.ir import leaf
from dovetail.ir.dim import symbol
from dovetail.ir.dtype import f32
from dovetail.ir.literal import Array
from dovetail.kernels.device import Caches, CpuDevice
from dovetail.library.block_formats import FORMATS
from dovetail.targets.cpu import backend
from dovetail.targets.cpu.gemm.blocks.floats import FloatKernel, one_row_function, rows_function, spell_function
from dovetail.targets.cpu.gemm.blocks.words import block_words
from dovetail.targets.cpu.gemm.policy import FLOATS
from tests.block_arrays import random_blocks
from tests.kernels.machines import code_for, loops, written_to_stack
from tests.targets.cpu.gemm.test_block_code import MACHINES
from tests.targets.cpu.gemm.test_blocks import compiled, judged, plans, rows, weights

DEVICES = {
    "avx512": CpuDevice(512, 32, ("byte_pairs",), emulated=True),
    "avx2": CpuDevice(256, 16, ("byte_pairs",), emulated=True),
    "neon without dot products": CpuDevice(128, 32, ("fma_by_lane",), emulated=True),
}
SMALL = CpuDevice(128, 32, ("fma_by_lane",), Caches(l1=4 << 10), emulated=True)
CUTS = ((0, 1), (1, 3), (3, 7), (7, 13), (0, 12), (13, 33), (5, 30))


@pytest.mark.exhaustive
@pytest.mark.parametrize("device", DEVICES.values(), ids=DEVICES)
def test_rows_are_right_and_have_the_same_bits_however_they_are_cut(
    device: CpuDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backend, "host_device", lambda: device)
    params: dict[str, Array] = {}
    x = leaf.input("x", f32[symbol("m"), 512])
    graph = Graph.of({name: x @ weights(params, name, name, 40, 512) for name in ("q4_0", "q8_0", "q4_k", "q6_k")})
    program, many = compiled(graph, params), rows(33)
    assert plans(program) == (["blocks"] * 4, 0), "no weight is spelled out in memory"
    judged(graph, params, program, many)
    whole = program.run({"x": many})
    for start, stop in CUTS:
        part = program.run({"x": many[start:stop]})
        assert all(part[name].tobytes() == whole[name][start:stop].tobytes() for name in whole)


@pytest.mark.slow
@pytest.mark.parametrize("name", FORMATS)
def test_every_format(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a cache that holds a group or two of a panel: blocks of several groups are spelled out in pieces."""
    monkeypatch.setattr(backend, "host_device", lambda: SMALL)
    params: dict[str, Array] = {}
    x = leaf.input("x", f32[symbol("m"), 512])
    graph = Graph.of({"y": x @ weights(params, "w", name, 24, 512)})
    program = compiled(graph, params, threads=1)
    for m in (1, 3):
        judged(graph, params, program, rows(m))
    assert plans(program) == (["blocks"], 0)


@pytest.mark.slow
def test_two_streams_and_epilogues(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backend, "host_device", lambda: DEVICES["avx2"])
    params: dict[str, Array] = {"b": np.linspace(-1, 1, 40, dtype=np.float32)}
    x, more = leaf.input("x", f32[symbol("m"), 64]), leaf.param("b", f32[40])
    gated = library.silu.body(x @ weights(params, "g", "q4_1", 40, 64)) * (x @ weights(params, "u", "q4_1", 40, 64))
    plain = ops.relu(x @ weights(params, "v", "q5_0", 40, 64) + more)
    graph = Graph.of({"gated": gated, "plain": plain})
    program = compiled(graph, params)
    for m in (1, 5):
        judged(graph, params, program, rows(m, k=64))
    assert plans(program) == (["blocks"] * 2, 0)


@pytest.mark.parametrize("name", ["q8_0", "int8_low"])
def test_codes_of_a_byte_are_floats_in_fast_mode_too(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sixteen bits would not hold a pair of products, so that nothing is rounded."""
    monkeypatch.setattr(backend, "host_device", lambda: DEVICES["avx2"])
    params: dict[str, Array] = {}
    graph = Graph.of({"y": leaf.input("x", f32[3, 64]) @ weights(params, "w", name, 40, 64)})
    judged(graph, params, compiled(graph, params, precision="fast"), rows(3, k=64))


@pytest.mark.parametrize("name", FORMATS)
def test_infinities_and_small_numbers_are_those_of_floats(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a row is too large for stays in it; rows of any magnitude are summed alike."""
    monkeypatch.setattr(backend, "host_device", lambda: SMALL)
    params: dict[str, Array] = {}
    graph = Graph.of({"y": leaf.input("x", f32[4, 256]) @ weights(params, "w", name, 24, 256)})
    program, given = compiled(graph, params, threads=1), rows(4, k=256)
    wanted = program.run({"x": given})["y"]
    for power in (-60, 60):
        found = program.run({"x": np.ldexp(given, power)})["y"]
        assert found.tobytes() == np.ldexp(wanted, power).tobytes()
    given[1, 7] = np.inf
    found = program.run({"x": given})["y"]
    assert not np.isfinite(found[1]).any() and found[[0, 2, 3]].tobytes() == wanted[[0, 2, 3]].tobytes()


@pytest.mark.slow
@pytest.mark.parametrize("machine", ["avx512", "avx2", "neon"])
@pytest.mark.parametrize("name", ["q8_0", "q4_0", "q4_k", "q6_k"])
def test_sums_stay_in_registers(name: str, machine: str) -> None:
    here = MACHINES[machine][0]
    kernel = FloatKernel.of(name, here.device)
    multiply = "fmla" if here.is_arm else "vfmadd"
    for rows_at_once in FLOATS.tiles:
        code = code_for(here, rows_function(kernel, rows_at_once)[0].text, optimize=False)
        hottest = max(loops(code), key=lambda body: body.count(multiply))
        assert hottest.count(multiply) == FLOATS.steps * rows_at_once * kernel.width and not written_to_stack(hottest)
    code = code_for(here, one_row_function(kernel)[0].text, optimize=False)
    hottest = max(loops(code), key=lambda body: body.count(multiply))
    width = kernel.vectors // (2 if kernel.packed.groups > 1 else 1)
    assert hottest.count(multiply) >= width * kernel.packed.block
    # What all groups of a block share may wait on the stack, sums of a group may not.
    assert 16 * len(written_to_stack(hottest)) <= hottest.count(multiply)


@pytest.mark.parametrize("name", FORMATS)
def test_codes_of_few_bits_are_looked_up(name: str) -> None:
    """With AVX-512 a code of up to four bits in one place of a word is an index of 16 floats, and nothing is masked."""
    here = MACHINES["avx512"][0]
    kernel = FloatKernel.of(name, here.device)
    code = code_for(here, spell_function(kernel, 0, kernel.packed.groups)[0].text, optimize=False)
    terms = [terms for group in block_words(name).codes for terms in group]
    assert code.count("vpermd") + code.count("vpermps") == 4 * sum(
        [len(some) == 1 and some[0].mask < 16 for some in terms]
    )


def test_pieces_divide_a_block() -> None:
    kernel = FloatKernel.of("q4_k", MACHINES["avx512"][0].device)
    assert [kernel.piece(room * kernel.spelled_bytes) for room in (0, 1, 2, 3, 5, 8, 99)] == [1, 1, 2, 2, 4, 8, 8]


@pytest.mark.slow
def test_parts_of_a_panel_go_on_where_the_one_before_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backend, "host_device", lambda: SMALL)
    params = {"w": random_blocks("q4_0", 24, 2080)}
    graph = Graph.of({"y": leaf.input("x", f32[symbol("m"), 2080]) @ weights({}, "w", "q4_0", 24, 2080)})
    program, many = compiled(graph, params, threads=1), rows(5, k=2080)
    judged(graph, params, program, many)
    alone = [program.run({"x": many[i : i + 1]})["y"] for i in range(5)]
    assert np.concatenate(alone).tobytes() == program.run({"x": many})["y"].tobytes()
