"""What a block of a format means, element by element: its parts, followed down to the bits of its words.

A format's own parts, in primitives, are evaluated at one index with bytes that are not known: what is left is an
expression of the words of a block. So formats are declared once, and every kernel that has words can read all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import TypeAlias

from dovetail import ops
from dovetail.dataclass import dataclass
from dovetail.ir import leaf
from dovetail.ir.dtype import f16, f32, i8, u8, u16, u32
from dovetail.ir.value import Op, Value
from dovetail.kernels.loops.body import cast_to
from dovetail.kernels.loops.ir import Call, Expr, Name, Number
from dovetail.library.block_formats import FORMATS, BlockParts, Format

Place: TypeAlias = tuple[int, ...]
_WHOLE = 1 << 23
"""From this float on neighbours are 1 apart: its lowest bits are an integer."""
_WHOLE_BITS = 0x4B000000
_FIRST_BYTE = 0x7440
"""Which bytes of a word and of these bits are a float: byte 0 of the word, and the upper three of the bits."""
_EVERY_SECOND = 0x4420
"""Which bytes of a word and of 0 are the first and the third, and nothing."""
_FOUR = 0x01010101
"""A byte times this is a word of it."""


@dataclass(frozen=True, slots=True)
class Bits:
    """An integer: 32 bits without a sign, at most `most`, plus a constant."""

    expr: Expr
    most: int
    offset: int = 0

    @property
    def as_float(self) -> Expr:
        """The same as f32. Bits below 2²³ become a float without a conversion, which takes four times as long."""
        if self.most >= _WHOLE:
            assert not self.offset, "large integers are none that a code becomes"
            return cast_to(self.expr, f32)
        lifted = _lifted(self.expr)
        if lifted is None:
            bits = _u32("bit_or", self.expr, _WHOLE_BITS)
        else:
            # One instruction takes a byte and sets the exponent; others are those of four bytes at once.
            word, byte = lifted
            bits = _taken(word, Number(_WHOLE_BITS, u32), Number(_FIRST_BYTE + byte, u32))
        shifted = Call("bitcast", (bits,), f32)
        return Call("sub", (shifted, Number(_WHOLE - self.offset, f32)), f32)


@dataclass(frozen=True, slots=True)
class BlockElement:
    """One number of a block: code * scale, and what is added, if anything."""

    code: Expr
    """In f32, where it is exact."""
    scale: Expr
    low: Expr | None

    def scaled(self, scale: str, low: str) -> Expr:
        """The number itself, with its scale and what is added under names."""
        if self.low is None:
            return Call("mul", (self.code, Name(scale, f32)), f32)
        return Call("fma", (self.code, Name(scale, f32), Name(low, f32)), f32)


def _u32(op: str, x: Expr, y: Expr | int) -> Expr:
    return Call(op, (x, Number(y, u32) if isinstance(y, int) else y), u32)


def _lifted(expr: Expr) -> tuple[Expr, int] | None:
    """An integer of bits of one byte as a byte of a word, by operations on four bytes at once; None where it is not."""
    match expr:
        case Call("bit_and", (Name() | Call("bit_xor", (Call("take_bytes"), _)) as word, Number(255))):
            return word, 0
        case Call(
            "bit_and",
            (Call("shift_right", (Call("bit_xor", (Call("take_bytes"), _)) as word, Number(by))), Number(255)),
        ):
            return word, int(by.real) // 8
        case Call("bit_and", (Call("shift_right", (Name() as word, Number(by))), Number(255))) if int(by.real) % 8 == 0:
            return word, int(by.real) // 8
        case Call("bit_and" | "bit_xor" as op, (x, Number(bits))) if bits.real < 256:
            inner = _lifted(x)
            return None if inner is None else (_u32(op, inner[0], int(bits.real) * _FOUR), inner[1])
        case Call("shift_right" | "shift_left" as op, (x, Number(by))) if by.real < 8:
            inner = _lifted(x)
            moved = int(by.real)
            # Bits of the neighbouring byte, and those that would go there, are none of this one.
            left = 255 >> moved if op == "shift_right" else 255 << moved & 255
            return None if inner is None else (_u32("bit_and", _u32(op, inner[0], moved), left * _FOUR), inner[1])
        case Call("bit_or", (x, y)):
            one, other = _lifted(x), _lifted(y)
            if one is None or other is None or one[1] != other[1]:
                return None
            return _u32("bit_or", one[0], other[0]), one[1]
        case _:
            return None


@lru_cache(maxsize=2 * len(FORMATS))
def traced(of: Format) -> tuple[Value, BlockParts]:
    """The parts of one block of a format, and the block."""
    block = leaf.input("block", u8[1, of.bytes])
    return block, of.parts(block)


class BlockReader:
    """The elements of a block, read from the words of its bytes."""

    def __init__(self, of: Format, byte: Callable[[int], Expr]) -> None:
        """`byte` gives a byte of the block as u32."""
        self.format = of
        self._block, self._parts = traced(of)
        self._byte = byte
        self._known: dict[tuple[Value, Place], Bits | Expr] = {}

    def element(self, number: int) -> BlockElement:
        """The element with a number, of all of a block."""
        group, at = divmod(number, self.format.group)
        place = (0, number) if self.format.levels == 2 else (0, group, at)
        parts = self._parts
        low = None if parts.low is None else self._float(parts.low, place)
        if parts.below is not None:
            below = Call("neg", (self._float(parts.below, place),), f32)
            low = below if low is None else Call("add", (low, below), f32)
        return BlockElement(self._float(parts.codes, place), self._float(parts.scale, place), low)

    def _float(self, value: Value, place: Place) -> Expr:
        element = self._at(value, place)
        return element.as_float if isinstance(element, Bits) else element

    def _at(self, value: Value, place: Place) -> Bits | Expr:
        """A value where it is broadcast to a place."""
        place = place[len(place) - value.rank :]
        place = tuple([0 if size == 1 else at for at, size in zip(place, value.shape, strict=True)])
        key = value, place
        if key not in self._known:
            self._known[key] = self._one(value, place)
        return self._known[key]

    def _one(self, value: Value, place: Place) -> Bits | Expr:
        if value is self._block:
            return Bits(self._byte(place[-1]), 255)
        if value.op is leaf.CONST:
            number = leaf.scalar_of(value)
            assert number is not None, "tables are operands of a gather alone"
            return Number(number, f32) if value.dtype is f32 else Bits(Number(number, u32), int(number.real))
        moved = _MOVES.get(value.op)
        if moved is not None:
            return self._at(*moved(value, place))
        if value.op is ops.gather:
            return _looked_up(value.operands[0], self._bits(value.operands[1], place))
        operands = [self._at(v, place) for v in value.operands]
        return _COMPUTED[value.op](value, operands)

    def _bits(self, value: Value, place: Place) -> Bits:
        bits = self._at(value, place)
        assert isinstance(bits, Bits), "codes are integers"
        return bits


def _axis(value: Value, name: str = "axis") -> int:
    return int(value.attrs[name]) % value.rank


def _sliced(value: Value, place: Place) -> tuple[Value, Place]:
    axis = _axis(value)
    start = int(value.attrs["start"])
    return value.operands[0], (*place[:axis], place[axis] + start, *place[axis + 1 :])


def _joined(value: Value, place: Place) -> tuple[Value, Place]:
    axis = _axis(value)
    at = place[axis]
    for operand in value.operands:
        size = operand.shape[axis]
        assert isinstance(size, int), "blocks have known sizes"
        if at < size:
            return operand, (*place[:axis], at, *place[axis + 1 :])
        at -= size
    raise AssertionError("a place is in one of the parts")


def _without_axes(value: Value, place: Place) -> tuple[Value, Place]:
    taken = {int(axis) % value.rank for axis in value.attrs["axes"]}
    return value.operands[0], tuple([at for axis, at in enumerate(place) if axis not in taken])


def _reshaped(value: Value, place: Place) -> tuple[Value, Place]:
    """Splitting and merging keep the order of elements."""
    flat = 0
    for at, size in zip(place, value.shape, strict=True):
        assert isinstance(size, int), "blocks have known sizes"
        flat = flat * size + at
    index: list[int] = []
    for size in reversed(value.operands[0].shape):
        assert isinstance(size, int), "blocks have known sizes"
        index.append(flat % size)
        flat //= size
    return value.operands[0], tuple(index[::-1])


_MOVES: Mapping[Op, Callable[[Value, Place], tuple[Value, Place]]] = {
    ops.slice_: _sliced,
    ops.concat: _joined,
    ops.unsqueeze: _without_axes,
    ops.split: _reshaped,
    ops.merge: _reshaped,
}


def _integers(operands: list[Bits | Expr]) -> list[Bits]:
    integers = [x for x in operands if isinstance(x, Bits)]
    assert len(integers) == len(operands), "operands are integers"
    return integers


def _bitwise(value: Value, operands: list[Bits | Expr]) -> Bits:
    x, y = _integers(operands)
    assert not x.offset and not y.offset, "bits have no constant added"
    most = min(x.most, y.most) if value.op is ops.bit_and else (1 << max(x.most, y.most).bit_length()) - 1
    return Bits(_u32(value.op.name, x.expr, y.expr), most)


def _shifted(value: Value, operands: list[Bits | Expr]) -> Bits:
    x, by = _integers(operands)
    if value.op is ops.shift_right:
        assert isinstance(by.expr, Number), "bits are moved down by a constant"
        return Bits(_u32("shift_right", x.expr, by.expr), x.most >> by.most)
    most = x.most << by.most if isinstance(by.expr, Number) else (1 << 32) - 1
    assert most < 1 << 8 * value.dtype.itemsize or value.dtype is u32, "no bit is moved out"
    return Bits(_u32("shift_left", x.expr, by.expr), min(most, (1 << 32) - 1))


def _taken_as(value: Value, operands: list[Bits | Expr]) -> Bits | Expr:
    """A bitcast."""
    (x,) = _integers(operands)
    match value.dtype:
        case dtype if dtype is i8:
            # The highest bit counts -128: flipped, it is one more 128 than that.
            return x if x.most < 128 else Bits(_u32("bit_xor", x.expr, 128), 255, -128)
        case dtype if dtype is f16:
            return Call("bitcast", (cast_to(x.expr, u16),), f16)
        case _:
            return Call("bitcast", (x.expr,), f32)


def _cast(value: Value, operands: list[Bits | Expr]) -> Bits | Expr:
    (x,) = operands
    if value.dtype is not f32:
        return x
    return x.as_float if isinstance(x, Bits) else cast_to(x, f32)


def _arithmetic(value: Value, operands: list[Bits | Expr]) -> Bits | Expr:
    x, y = operands
    if isinstance(x, Bits) and isinstance(y, Bits):
        assert value.op is ops.sub and isinstance(y.expr, Number), "a zero point is subtracted"
        if value.dtype is u32:
            return Bits(_u32("sub", x.expr, y.expr), x.most)
        return Bits(x.expr, x.most, x.offset - y.most)
    floats = tuple([v.as_float if isinstance(v, Bits) else v for v in operands])
    return Call(value.op.name, floats, f32)


def _chosen(value: Value, operands: list[Bits | Expr]) -> Bits:
    condition, *others = operands
    x, y = _integers(others)
    assert not isinstance(condition, Bits), "a comparison"
    return Bits(Call("where", (condition, x.expr, y.expr), u32), max(x.most, y.most))


def _compared(value: Value, operands: list[Bits | Expr]) -> Expr:
    return Call(value.op.name, tuple([x.expr for x in _integers(operands)]), value.dtype)


_COMPUTED: Mapping[Op, Callable[[Value, list[Bits | Expr]], Bits | Expr]] = {
    **dict.fromkeys((ops.bit_and, ops.bit_or, ops.bit_xor), _bitwise),
    **dict.fromkeys((ops.shift_left, ops.shift_right), _shifted),
    **dict.fromkeys((ops.mul, ops.sub, ops.add), _arithmetic),
    ops.bitcast: _taken_as,
    ops.cast: _cast,
    ops.where: _chosen,
    ops.less: _compared,
}


def _looked_up(table: Value, at: Bits) -> Bits:
    """One of 16 bytes, which are constants in four words: for four codes at once, each in a byte of a word."""
    entries = [int(x) + 128 for x in table.attrs["value"].array.tolist()]
    assert len(entries) == 16 and at.most < 16, "four bits choose"
    words = [Number(sum(x << 8 * i for i, x in enumerate(entries[i : i + 4])), u32) for i in range(0, 16, 4)]
    lifted = _lifted(at.expr)
    codes, byte = (at.expr, 0) if lifted is None else lifted
    # A selector has its codes next to each other, four bits each.
    pairs = _u32("bit_or", codes, _u32("shift_right", codes, 4))
    chosen = _u32("bit_and", _taken(pairs, Number(0, u32), Number(_EVERY_SECOND, u32)), 0x7777)
    low, high = _taken(words[0], words[1], chosen), _taken(words[2], words[3], chosen)
    is_high = _u32("mul", _u32("bit_and", _u32("shift_right", codes, 3), _FOUR), 255)
    entry = _u32("bit_xor", low, _u32("bit_and", _u32("bit_xor", low, high), is_high))
    return Bits(_u32("bit_and", _u32("shift_right", entry, 8 * byte) if byte else entry, 255), 255, -128)


def _taken(x: Expr, y: Expr, selector: Expr) -> Expr:
    return Call("take_bytes", (x, y, selector), u32)


__all__ = ["BlockElement", "BlockReader", "traced"]
