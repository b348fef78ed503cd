"""Absolute reshapes as relative movement: few splits and merges, and no count of elements taken on trust."""

from __future__ import annotations

from collections.abc import Sequence

from dovetail.errors import TypeRuleError
from dovetail.ir.dim import Size, product
from dovetail.ir.value import Value
from dovetail.ops.movement import expand, merge, sized, split, unsqueeze
from dovetail.ops.view import View, quotient
from dovetail.ops.view_chain import build_view


def reshape(x: Value, shape: Sequence[Size]) -> Value:
    """The same elements in another shape, by as few splits and merges as possible; one size may be -1."""
    wanted = tuple(shape)
    if wanted.count(-1) > 1:
        raise TypeRuleError(f"reshape to {spell_shape(wanted)}", hint="only one size can follow from the others")
    for size in wanted:
        if isinstance(size, int) and size < -1:
            raise TypeRuleError(f"reshape to {spell_shape(wanted)}", hint="sizes are zero or more, or one -1")
    if -1 in wanted:
        return _reshape_rest(x, wanted, wanted.index(-1))
    if wanted == x.shape:
        return x
    have, want = x.tensor.count, product(wanted)
    if have != want:
        return _reshape_on_trust(x, wanted, have, want)
    if have == 0:
        return _reshape_nothing(x, wanted)
    view = View(x)
    built = build_view(view) if view.reshape(wanted) else None
    return built if built is not None else _through_one_axis(x, wanted)


def _reshape_rest(x: Value, wanted: tuple[Size, ...], at: int) -> Value:
    """-1 is what the other sizes leave."""
    others = product((*wanted[:at], *wanted[at + 1 :]))
    have = x.tensor.count
    rest = quotient(have, others)
    if rest is not None:
        return reshape(x, (*wanted[:at], rest, *wanted[at + 1 :]))
    if others == 0 or (isinstance(have, int) and isinstance(others, int)):
        raise TypeRuleError(
            f"reshape of {x.type} to {spell_shape(wanted)}: {have} elements are not a multiple of {others}",
            hint="the other sizes must divide the number of elements",
        )
    # It must divide, and the splits record that.
    front, back = _same_ends(x.shape, wanted)
    y = _merged(x, front, x.rank - back)
    outer, inner = product(wanted[front:at]), product(wanted[at + 1 : len(wanted) - back])
    y = y if outer == 1 else split(y, axis=-back - 1, parts=outer)
    y = y if inner == 1 else split(y, axis=-back - 1, size=inner)
    return reshape(y, (*wanted[:at], y.shape[-back - (1 if inner == 1 else 2)], *wanted[at + 1 :]))


def _reshape_on_trust(x: Value, wanted: tuple[Size, ...], have: Size, want: Size) -> Value:
    """Algebra does not tell whether the counts agree: they are stated to, and that is recorded."""
    ratios = [quotient(have, want), quotient(want, have)]
    if (isinstance(have, int) and isinstance(want, int)) or any(isinstance(r, int) and r != 1 for r in ratios):
        raise TypeRuleError(
            f"reshape of {x.type} with {have} elements to {spell_shape(wanted)} with {want}",
            hint="a reshape keeps the number of elements",
        )
    front, back = _same_ends(x.shape, wanted)
    y = _merged(x, front, x.rank - back)
    y = sized(y, axis=-back - 1, size=product(wanted[front : len(wanted) - back]))
    return reshape(y, wanted)


def _same_ends(found: tuple[Size, ...], wanted: tuple[Size, ...]) -> tuple[int, int]:
    """How many sizes agree in front, and how many of the others at the back."""
    most = min(len(found), len(wanted))
    front = 0
    while front < most and found[front] == wanted[front]:
        front += 1
    back = 0
    while back < most - front and found[-back - 1] == wanted[-back - 1]:
        back += 1
    return front, back


def _merged(x: Value, first: int, end: int) -> Value:
    """Axes first to end as one; a new one of size 1 where there is none."""
    axis = end - 1 - x.rank
    if end == first:
        return unsqueeze(x, axes=(axis,))
    return x if end - first == 1 else merge(x, axis=axis, count=end - first)


def _reshape_nothing(x: Value, wanted: tuple[Size, ...]) -> Value:
    """No elements: one empty axis stands for all, and the others repeat it."""
    empty = wanted.index(0) - len(wanted)
    flat = _merged(x, 0, x.rank)
    y = unsqueeze(flat, axes=tuple(a for a in range(-len(wanted), 0) if a != empty))
    for axis in range(-len(wanted), 0):
        if axis != empty and wanted[axis] != 1:
            y = expand(y, axis=axis, size=wanted[axis])
    return y


def _through_one_axis(x: Value, wanted: tuple[Size, ...]) -> Value:
    """The way that always works: all axes become one, which is split."""
    y = _merged(x, 0, x.rank)
    for at in range(len(wanted) - 1):
        y = split(y, axis=-1, parts=wanted[at])
    return y


def spell_shape(shape: Sequence[Size]) -> str:
    """A shape as messages write it."""
    return f"[{', '.join(map(str, shape))}]"


__all__ = ["reshape"]
