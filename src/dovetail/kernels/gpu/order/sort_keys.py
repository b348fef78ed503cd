"""Keys of a sort: unsigned integers in the order of the elements, each with the place that its element came from.

NaN has the largest key, and both zeros have one. The complement of keys sorts downwards. Places are part of the order,
so that no two are equal, every sorting network is stable, and padding goes last. Elements of at most 32 bits and their
places are one word of 64 bits; wider elements have an array for keys and one for places.
"""

from __future__ import annotations

from dovetail.dataclass import dataclass
from dovetail.ir.dim import Size
from dovetail.ir.dtype import DType, bool_, i64, u8, u16, u32, u64
from dovetail.kernels.gpu.order.passes import choose, holds
from dovetail.kernels.loops.body import cast_to
from dovetail.kernels.loops.ir import Alloc, Call, Expr, Load, Name, Number, Set, Space, Statement, Store, Tensor

_WORDS = {8: u8, 16: u16, 32: u32, 64: u64}
_PLACE_BITS = 32
MOST_ELEMENTS = 1 << _PLACE_BITS
"""Elements of a row, at most: a place has 32 bits."""


def ordered_bits(x: Expr, descending: bool) -> Expr:
    """A scalar as an unsigned integer of its width, which orders as the elements do."""
    dtype = x.dtype
    if dtype is bool_:
        ordered = cast_to(x, u8)
    elif dtype.kind == "uint":
        ordered = x
    else:
        word = _WORDS[dtype.bits]
        sign = Number(1 << (dtype.bits - 1), word)
        bits: Expr = Call("bitcast", (x,), word)
        if dtype.is_float:
            is_zero = holds("equal", x, Number(0.0, dtype))
            bits = choose(is_zero, Number(0, word), bits)
            negative = holds("greater_equal", bits, sign)
            turned = choose(negative, Call("bit_not", (bits,), word), Call("bit_or", (bits, sign), word))
            ordered = choose(holds("is_nan", x), Number((1 << dtype.bits) - 1, word), turned)
        else:
            ordered = Call("bit_xor", (bits, sign), word)
    return Call("bit_not", (ordered,), ordered.dtype) if descending else ordered


@dataclass(frozen=True, slots=True)
class Key:
    """A key while it is in registers: one or two scalars."""

    parts: tuple[Expr, ...]

    def before(self, other: Key) -> Expr:
        """Whether it is the smaller of two; they are never equal."""
        if len(self.parts) == 1:
            return holds("less", self.parts[0], other.parts[0])
        first = holds("less", self.parts[0], other.parts[0])
        same = holds("equal", self.parts[0], other.parts[0])
        then = holds("less", self.parts[1], other.parts[1])
        return Call("bit_or", (first, Call("bit_and", (same, then), bool_)), bool_)

    def kept(self, name: str) -> tuple[tuple[Statement, ...], Key]:
        """Statements that keep it under a name, and the key as it is kept."""
        sets = tuple(Set(f"{name}{i}", part) for i, part in enumerate(self.parts))
        return sets, Key(tuple(Name(f"{name}{i}", part.dtype) for i, part in enumerate(self.parts)))

    @property
    def place(self) -> Expr:
        """The place that the element came from, an i64."""
        last = self.parts[-1]
        if len(self.parts) == 1:
            last = Call("bit_and", (last, Number(MOST_ELEMENTS - 1, u64)), u64)
        return cast_to(last, i64)

    @property
    def high(self) -> Expr:
        """The upper 32 bits of a key of one word, an i64."""
        return cast_to(Call("shift_right", (self.parts[0], Number(_PLACE_BITS, u64)), u64), i64)


def chosen(condition: Expr, x: Key, y: Key) -> Key:
    """x where a condition holds, else y."""
    return Key(tuple(choose(condition, a, b) for a, b in zip(x.parts, y.parts, strict=True)))


@dataclass(frozen=True, slots=True)
class Keys:
    """An array of keys in memory: rows of some length."""

    pointer: str
    is_wide: bool
    """Whether keys have 64 bits, and places an array of their own."""
    row: Size
    """Keys of a row."""
    count: Size
    """Keys of all rows."""
    space: Space = "global"

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        names = (f"{self.pointer}_places",) if self.is_wide else ()
        keys = [Tensor(self.pointer, u64, (self.row * 8, 8), space=self.space)]
        return (*keys, *(Tensor(name, u32, (self.row * 4, 4), space=self.space) for name in names))

    @property
    def workspace(self) -> dict[str, Size]:
        """Bytes of each pointer."""
        return {t.pointer: self.count * t.dtype.itemsize for t in self.tensors}

    def allocated(self) -> tuple[Statement, ...]:
        """The array in shared memory."""
        assert isinstance(self.count, int), "shared memory has a known size"
        return tuple(Alloc(t.pointer, t.dtype, self.count, "shared") for t in self.tensors)

    def load(self, row: Expr, at: Expr) -> Key:
        return Key(tuple(Load(t, (row, at)) for t in self.tensors))

    def store(self, row: Expr, at: Expr, key: Key) -> tuple[Statement, ...]:
        return tuple(Store(t, (row, at), part) for t, part in zip(self.tensors, key.parts, strict=True))

    def key(self, bits: Expr, place: Expr) -> Key:
        """The key of an element: its bits in order, and its place."""
        if self.is_wide:
            return Key((cast_to(bits, u64), cast_to(place, u32)))
        upper = Call("shift_left", (cast_to(bits, u64), Number(_PLACE_BITS, u64)), u64)
        return Key((Call("bit_or", (upper, cast_to(place, u64)), u64),))

    @property
    def last(self) -> Key:
        """A key that goes after all others: padding."""
        every = Number((1 << 64) - 1, u64)
        return Key((every, Number(MOST_ELEMENTS - 1, u32))) if self.is_wide else Key((every,))


def is_wide(dtype: DType) -> bool:
    """Whether keys of a dtype need more than half a word."""
    return dtype.bits > _PLACE_BITS


__all__ = ["MOST_ELEMENTS", "Key", "Keys", "chosen", "is_wide", "ordered_bits"]
