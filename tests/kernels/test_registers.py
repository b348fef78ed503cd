"""The loops of register tiles, as machines see them: whatever is summed stays in registers."""

from __future__ import annotations

import re

import pytest

from dovetail.kernels.device import CpuDevice
from dovetail.targets.cpu.attention.parts import key_rows, scores_function, values_function, weights_function
from dovetail.targets.cpu.conv.broadcast_tile import square_of
from dovetail.targets.cpu.conv.broadcast_tile import tile_text as places_text
from dovetail.targets.cpu.conv.direct import kernel as conv_text
from dovetail.targets.cpu.conv.epilogue import Epilogue
from dovetail.targets.cpu.conv.few_pixels.kernel import Square, least_waste, square_text
from dovetail.targets.cpu.conv.pointwise import kernel as conv_point_text
from dovetail.targets.cpu.conv.pointwise_packed.micro_kernel import forms_of, tile_text
from dovetail.targets.cpu.gemm.block import block_text
from dovetail.targets.cpu.gemm.micro_kernel import tile_of
from dovetail.targets.cpu.isa import Host
from tests.kernels.machines import MACHINES, NEON, code_for, loops, on_stack, products, summing, written_to_stack

EVERY_MACHINE = pytest.mark.parametrize("machine", MACHINES.values(), ids=MACHINES)


def vectors_of(machine: Host) -> CpuDevice:
    return machine.device


@EVERY_MACHINE
def test_contractions(machine: Host) -> None:
    tile = tile_of(vectors_of(machine))
    found = loops(code_for(machine, block_text(tile), optimize=False))
    assert len(found) >= tile.rows, "every number of rows has its loop"
    for loop in found:
        assert not on_stack(loop), f"the stack is touched:\n{loop}"
    assert max(map(products, found)) >= tile.rows * tile.vectors


@EVERY_MACHINE
@pytest.mark.parametrize("wide", [1, 2])
def test_attention(machine: Host, wide: int) -> None:
    vectors = vectors_of(machine)
    sums = (
        scores_function(vectors, wide, 64, 64, with_top=True),
        scores_function(vectors, wide, 64, 64, with_top=True, with_mask=True, prefetches=False),
        values_function(vectors, wide, key_rows(vectors, wide)),
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


@EVERY_MACHINE
@pytest.mark.parametrize("point", [False, True])
def test_convolutions(machine: Host, point: bool) -> None:
    vectors = vectors_of(machine)
    wide = conv_text.Shape.of(vectors, 64, Epilogue("relu", True), point)
    few = Square(vectors, *least_waste(vectors, 49), Epilogue("relu", True), point)
    beside = square_of(vectors, 64, Epilogue("relu", True), point)
    texts = [conv_text.tile_text(wide, wide.columns), square_text(few), places_text(beside, beside.places)]
    if point:
        texts.append(conv_point_text.tile_text(wide, wide.columns))
    for text, uses in texts:
        declared = [use for use in uses if use.startswith("declare")]
        found = loops(code_for(machine, "\n".join([*declared, text.replace("internal ", "")])))
        assert found
        assert not [line for loop in found for line in on_stack(summing(loop))]


@EVERY_MACHINE
@pytest.mark.parametrize("residual", [False, True])
def test_panels_of_filters(machine: Host, residual: bool) -> None:
    vectors = vectors_of(machine)
    for form in forms_of(vectors):
        text, uses = tile_text(Square(vectors, *form, Epilogue("relu", True, residual), True), 1)
        declared = [use for use in uses if use.startswith("declare")]
        found = loops(code_for(machine, "\n".join([*declared, text.replace("internal ", "")])))
        assert len(found) == 3, "with results asked for, without, and channel by channel"
        assert not [line for loop in found for line in on_stack(loop)]
        assert max(map(products, found)) == 4 * form[0] * form[1]


@pytest.mark.parametrize("wide", [1, 2])
def test_neon_multiplies_by_lanes(wide: int) -> None:
    """One load serves four products, where a number for each would take as many instructions as the products."""
    vectors = vectors_of(NEON)
    features = key_rows(vectors, wide)
    texts = [
        block_text(tile_of(vectors)),
        scores_function(vectors, wide, 64, 64, with_top=False)[0].text,
        values_function(vectors, wide, features)[0].text,
    ]
    for text in texts:
        loop = max(loops(code_for(NEON, text, optimize=False)), key=products)
        assert len(re.findall(r"fmla\s+v\d+\.4s, v\d+\.4s, v\d+\.s\[\d\]", loop)) == products(loop)
        assert not re.search(r"ld1r|\bdup\b", loop)
