"""Elements of blocks as expressions of their bytes: bit by bit what the format's own op gives."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from dovetail import ops
from dovetail.ir import leaf
from dovetail.ir.dtype import u8, u32
from dovetail.ir.literal import Array
from dovetail.kernels.gpu.blocks.elements import BlockReader
from dovetail.kernels.gpu.blocks.packed_blocks import SPREAD, NamedBlock, PackedBlocks, spread, with_spread
from dovetail.kernels.loops.ir import Call, Expr, Name, Number
from dovetail.library.block_formats import FORMATS
from dovetail.library.dequantise_blocks import dequantise_blocks
from dovetail.targets.runtime.calls.interpreter import evaluate_values
from tests.block_arrays import random_blocks
from tests.targets.cuda.arithmetic import apply

_OPS = {op.name: op for op in ops.ALL}


def _value(expr: Expr, given: dict[str, Array], known: dict[int, Array]) -> Array:
    if id(expr) not in known:
        known[id(expr)] = np.asarray(_computed(expr, given, known))
    return known[id(expr)]


def _computed(expr: Expr, given: dict[str, Array], known: dict[int, Array]) -> Any:
    if isinstance(expr, Name):
        return given[expr.name]
    if isinstance(expr, Number):
        return np.asarray(expr.value).astype(expr.dtype.numpy)
    assert isinstance(expr, Call)
    xs = [_value(x, given, known) for x in expr.operands]
    if expr.op == "cast":
        return xs[0].astype(expr.dtype.numpy)
    if expr.op == "take_bytes":
        return apply(expr.op, xs, u32)
    return xs[0].view(expr.dtype.numpy) if expr.op == "bitcast" else _OPS[expr.op].meaning(*xs)


@pytest.mark.parametrize("kind", [*FORMATS])
def test_elements_are_those_of_the_op(kind: str) -> None:
    of, blocks = FORMATS[kind], random_blocks(kind, 5, FORMATS[kind].elements, 3)
    stored = leaf.input("blocks", u8[blocks.shape])
    (wanted,) = evaluate_values([dequantise_blocks(stored, format=kind)], {stored: blocks})  # pyright: ignore[reportArgumentType]
    reader = BlockReader(of, lambda byte: Name(f"byte{byte}", u32))
    given = {f"byte{i}": blocks[:, i].astype(np.uint32) for i in range(of.bytes)}
    for number in range(of.elements):
        one, known = reader.element(number), dict[int, Array]()
        found = _value(one.code, given, known) * _value(one.scale, given, known)
        found = found if one.low is None else found + _value(one.low, given, known)
        np.testing.assert_array_equal(found, wanted[:, number])


@pytest.mark.parametrize("kind", [*FORMATS])
def test_packing_keeps_every_byte_and_adds_none(kind: str) -> None:
    blocks = random_blocks(kind, 6, 2 * FORMATS[kind].elements, 3)
    packed = PackedBlocks(kind)(blocks[:4], blocks[4:])
    assert packed.nbytes == blocks.nbytes
    if kind in SPREAD:
        assert np.unpackbits(packed).sum() == np.unpackbits(blocks).sum()
    else:
        np.testing.assert_array_equal(np.sort(packed), np.sort(blocks.reshape(-1)))


@pytest.mark.parametrize("kind", [*SPREAD])
def test_fifth_bits_are_in_the_bytes_of_their_codes(kind: str) -> None:
    """The numbers are those of the file, bit by bit, and one operation takes four codes."""
    of, blocks = with_spread(kind), random_blocks(kind, 5, 32, 3)
    stored, packed = leaf.input("blocks", u8[blocks.shape]), leaf.input("packed", u8[blocks.shape])
    (wanted,) = evaluate_values([dequantise_blocks(stored, format=kind)], {stored: blocks})  # pyright: ignore[reportArgumentType]
    parts = of.parts(packed)
    kept = [part for part in (parts.codes, parts.scale, parts.low) if part is not None]
    codes, scale, *low = evaluate_values(kept, {packed: spread(kind, blocks)})
    floats = codes.astype(np.float32) * scale
    np.testing.assert_array_equal(floats + low[0] if low else floats, wanted)
    read = NamedBlock(PackedBlocks(kind), "word")
    taken = [call for number in range(4) for call in _calls(read.element(number).code) if call.op == "take_bytes"]
    assert len(taken) == 4 and len({repr(call.operands[0]) for call in taken}) == 1


def _calls(expr: Expr) -> Iterator[Call]:
    if isinstance(expr, Call):
        yield expr
        for operand in expr.operands:
            yield from _calls(operand)
