"""The loops of register tiles, as machines see them: whatever is summed stays in registers."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from dovetail.codegen.llvm.function import Function
from dovetail.kernels.device import CpuDevice
from dovetail.kernels.problems.epilogue import RELU, Epilogue
from dovetail.targets.cpu.attention.backward import sums_function
from dovetail.targets.cpu.attention.functions import key_rows, scores_function, values_function, weights_function
from dovetail.targets.cpu.attention.policy import ATTENTION
from dovetail.targets.cpu.conv import direct as direct
from dovetail.targets.cpu.conv import few_pixels as few_pixels
from dovetail.targets.cpu.conv import few_results
from dovetail.targets.cpu.conv import pointwise as pointwise
from dovetail.targets.cpu.conv.few_results import FewResultsTile
from dovetail.targets.cpu.conv.filters_in_lanes import RegisterTile, broadcast_tile, broadcast_tile_of
from dovetail.targets.cpu.conv.pixels_in_lanes import PixelTile
from dovetail.targets.cpu.conv.pointwise_packed import forms_of, micro_kernel
from dovetail.targets.cpu.gemm.f32.block import block_text
from dovetail.targets.cpu.gemm.f32.narrow import NarrowTile, narrow_function
from dovetail.targets.cpu.gemm.f32.pair import pair_tile
from dovetail.targets.cpu.gemm.f32.pair_kernel import rows_function
from dovetail.targets.cpu.gemm.int8.tile import ByteTile, byte_tile_function
from dovetail.targets.cpu.gemm.policy import INT8_TILES, Int8Tile
from dovetail.targets.cpu.gemm.tile import tile_of
from dovetail.targets.cpu.isa import Host
from tests.kernels.machines import (
    ALSO_AVX512,
    DOT,
    MACHINES,
    NEON,
    VNNI,
    code_for,
    loops,
    on_stack,
    products,
    summing,
    written_to_stack,
)

EVERY_MACHINE = pytest.mark.parametrize("machine", MACHINES.values(), ids=MACHINES)
ALSO_ON_AVX512 = pytest.mark.parametrize("machine", ALSO_AVX512.values(), ids=ALSO_AVX512)


def vectors_of(machine: Host) -> CpuDevice:
    return machine.device


@pytest.mark.slow
@ALSO_ON_AVX512
def test_contractions(machine: Host) -> None:
    tile = tile_of(vectors_of(machine))
    found = loops(code_for(machine, block_text(tile), optimize=False))
    assert len(found) >= tile.rows, "every number of rows has its loop"
    for loop in found:
        assert not on_stack(loop), f"the stack is touched:\n{loop}"
    assert max(map(products, found)) >= tile.rows * tile.vectors


@pytest.mark.slow
@ALSO_ON_AVX512
@pytest.mark.parametrize("by_rows", [False, True])
@pytest.mark.parametrize("columns", [48, 64])
def test_contractions_of_two_activations(machine: Host, by_rows: bool, columns: int) -> None:
    """Operands of the next step along k do not take the registers of sums."""
    tile = pair_tile(vectors_of(machine), columns, by_rows=by_rows)
    function, _ = rows_function(tile, by_rows=by_rows)
    found = [loop for loop in loops(code_for(machine, function.text, optimize=False)) if products(loop)]
    assert len(found) >= tile.rows
    for loop in found:
        assert not on_stack(loop), f"the stack is touched:\n{loop}"
    assert max(map(products, found)) >= tile.rows * tile.vectors


@pytest.mark.parametrize("shape", INT8_TILES, ids=lambda row: row.capability)
@pytest.mark.parametrize("weights_are_rows", [False, True])
def test_products_of_bytes(shape: Int8Tile, weights_are_rows: bool) -> None:
    """Every tile of a dot instruction keeps its sums in registers, and NEON broadcasts by lane."""
    machine = {"vnni": VNNI, "int8_dot": DOT}[shape.capability]
    for mr, vectors in ((shape.mr, shape.vectors), *shape.others):
        tile = ByteTile(replace(shape, mr=mr, vectors=vectors), weights_are_rows=weights_are_rows)
        part, _ = byte_tile_function(tile, mr)
        (loop,) = loops(code_for(machine, part.text, optimize=False))
        assert products(loop) == mr * vectors
        assert not on_stack(loop)
        assert "dup" not in loop


@pytest.mark.slow
@EVERY_MACHINE
@pytest.mark.parametrize("wide", [1, 2])
def test_attention(machine: Host, wide: int) -> None:
    vectors = vectors_of(machine)
    sums = (
        scores_function(vectors, wide, 64, 64, with_maximum=True),
        scores_function(vectors, wide, 64, 64, with_maximum=True, with_mask=True, prefetches=False),
        values_function(vectors, wide, key_rows(vectors, wide)),
        sums_function(vectors, wide, vectors.registers // 2 // ATTENTION.sum_keys),
    )
    for part, _ in sums:
        found = loops(code_for(machine, part.text, optimize=False))
        assert found
        assert not [line for loop in found for line in on_stack(loop)]
    # With few registers what does not change may be read from the stack.
    for twos in (False, True):
        found = loops(code_for(machine, weights_function(vectors, wide, twos=twos)[0].text, optimize=False))
        assert found
        assert not [line for loop in found for line in written_to_stack(loop)]


def module_of(function: Function) -> str:
    """A function with what it declares, not internal: it is kept though nothing calls it."""
    declared = [use for use in function.uses if use.startswith("declare")]
    return "\n".join([*declared, function.text.replace("internal ", "")])


@pytest.mark.slow
@EVERY_MACHINE
@pytest.mark.parametrize("point", [False, True])
def test_convolutions(machine: Host, point: bool) -> None:
    device, epilogue = vectors_of(machine), Epilogue(RELU, True)
    wide = PixelTile.of(device, 64, epilogue, point)
    few = RegisterTile(device, *few_pixels.least_waste(device, 49), epilogue, point)
    side = broadcast_tile_of(device, 64, epilogue, equidistant=point)
    functions = [
        direct.register_tile(wide, wide.vectors),
        few_pixels.register_tile(few),
        broadcast_tile(side, side.pixels),
    ]
    if point:
        functions.append(pointwise.register_tile(wide, wide.vectors))
    for function in functions:
        found = loops(code_for(machine, module_of(function)))
        assert found
        assert not [line for loop in found for line in on_stack(summing(loop))]


@pytest.mark.slow
@ALSO_ON_AVX512
@pytest.mark.parametrize("columns", [1, 2, 6, 8])
def test_products_with_few_columns(machine: Host, columns: int) -> None:
    tile = NarrowTile(vectors_of(machine), columns)
    found = loops(code_for(machine, narrow_function(tile)[0].text))
    hottest = max(found, key=products)
    assert products(hottest) >= tile.rows * columns
    assert not written_to_stack(hottest) and not on_stack(summing(hottest))


@pytest.mark.slow
@EVERY_MACHINE
@pytest.mark.parametrize("results", [2, 3, 5])
def test_few_results(machine: Host, results: int) -> None:
    tile = FewResultsTile.of(vectors_of(machine), results, 1, 1)
    if tile is None:
        pytest.skip("products of copies are as fast on this device")
    for lines in range(1, tile.lines + 1):
        found = loops(code_for(machine, module_of(few_results.register_tile(tile, lines)), optimize=False))
        assert max(map(products, found)) % (lines * results * tile.vectors) == 0
        assert not [line for loop in found for line in written_to_stack(loop)]
        assert not on_stack(summing(max(found, key=products)))


@pytest.mark.slow
@EVERY_MACHINE
@pytest.mark.parametrize("residual", [False, True])
def test_panels_of_filters(machine: Host, residual: bool) -> None:
    device = vectors_of(machine)
    for form in forms_of(device):
        tile = RegisterTile(device, *form, Epilogue(RELU, True, residual), True)
        found = loops(code_for(machine, module_of(micro_kernel(tile, 1))))
        assert len(found) == 3, "with results prefetched, without, and channel by channel"
        assert not [line for loop in found for line in on_stack(loop)]
        assert max(map(products, found)) == 4 * form[0] * form[1]


@pytest.mark.slow
@pytest.mark.parametrize("wide", [1, 2])
def test_neon_multiplies_by_lanes(wide: int) -> None:
    """One load serves four products, where a number for each would take as many instructions as the products."""
    vectors = vectors_of(NEON)
    features = key_rows(vectors, wide)
    texts = [
        block_text(tile_of(vectors)),
        scores_function(vectors, wide, 64, 64, with_maximum=False)[0].text,
        values_function(vectors, wide, features)[0].text,
    ]
    for text in texts:
        loop = max(loops(code_for(NEON, text, optimize=False)), key=products)
        assert len(re.findall(r"fmla\s+v\d+\.4s, v\d+\.4s, v\d+\.s\[\d\]", loop)) == products(loop)
        assert not re.search(r"ld1r|\bdup\b", loop)
