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
    """Return the same elements in another shape, by as few splits and merges as possible; one size may be -1."""
    target = tuple(shape)
    if target.count(-1) > 1:
        raise TypeRuleError(f"reshape to {spell_shape(target)}", hint="only one size can follow from the others")
    for size in target:
        if isinstance(size, int) and size < -1:
            raise TypeRuleError(f"reshape to {spell_shape(target)}", hint="sizes are zero or more, or one -1")
    if -1 in target:
        return _reshape_rest(x, target, target.index(-1))
    if target == x.shape:
        return x
    have, want = x.tensor.count, product(target)
    if have != want:
        return _reshape_on_trust(x, target, have, want)
    if have == 0:
        return _reshape_nothing(x, target)
    view = View(x)
    built = build_view(view) if view.reshape(target) else None
    return built if built is not None else _through_one_axis(x, target)


def _reshape_rest(x: Value, target: tuple[Size, ...], at: int) -> Value:
    """Replace -1 by what the other sizes leave."""
    others = product((*target[:at], *target[at + 1 :]))
    have = x.tensor.count
    rest = quotient(have, others)
    if rest is not None:
        return reshape(x, (*target[:at], rest, *target[at + 1 :]))
    if others == 0 or (isinstance(have, int) and isinstance(others, int)):
        raise TypeRuleError(
            f"reshape of {x.type} to {spell_shape(target)}: {have} elements are not a multiple of {others}",
            hint="the other sizes must divide the number of elements",
        )
    # It must divide, and the splits record that.
    front, back = _same_ends(x.shape, target)
    y = _merged(x, front, x.rank - back)
    outer, inner = product(target[front:at]), product(target[at + 1 : len(target) - back])
    y = y if outer == 1 else split(y, axis=-back - 1, parts=outer)
    y = y if inner == 1 else split(y, axis=-back - 1, size=inner)
    return reshape(y, (*target[:at], y.shape[-back - (1 if inner == 1 else 2)], *target[at + 1 :]))


def _reshape_on_trust(x: Value, target: tuple[Size, ...], have: Size, want: Size) -> Value:
    """Reshape where algebra cannot compare the counts: state that they agree, and record that."""
    ratios = [quotient(have, want), quotient(want, have)]
    if (isinstance(have, int) and isinstance(want, int)) or any(isinstance(r, int) and r != 1 for r in ratios):
        raise TypeRuleError(
            f"reshape of {x.type} with {have} elements to {spell_shape(target)} with {want}",
            hint="a reshape keeps the number of elements",
        )
    front, back = _same_ends(x.shape, target)
    y = _merged(x, front, x.rank - back)
    y = sized(y, axis=-back - 1, size=product(target[front : len(target) - back]))
    return reshape(y, target)


def _same_ends(current: tuple[Size, ...], target: tuple[Size, ...]) -> tuple[int, int]:
    """Return how many sizes agree in front, and how many of the others at the back."""
    most = min(len(current), len(target))
    front = 0
    while front < most and current[front] == target[front]:
        front += 1
    back = 0
    while back < most - front and current[-back - 1] == target[-back - 1]:
        back += 1
    return front, back


def _merged(x: Value, first: int, end: int) -> Value:
    """Axes first to end as one; a new one of size 1 where there is none."""
    axis = end - 1 - x.rank
    if end == first:
        return unsqueeze(x, axes=(axis,))
    return x if end - first == 1 else merge(x, axis=axis, count=end - first)


def _reshape_nothing(x: Value, target: tuple[Size, ...]) -> Value:
    """Reshape a tensor without elements: one empty axis stands for all, and the others repeat it."""
    empty = target.index(0) - len(target)
    flat = _merged(x, 0, x.rank)
    y = unsqueeze(flat, axes=tuple(a for a in range(-len(target), 0) if a != empty))
    for axis in range(-len(target), 0):
        if axis != empty and target[axis] != 1:
            y = expand(y, axis=axis, size=target[axis])
    return y


def _through_one_axis(x: Value, target: tuple[Size, ...]) -> Value:
    """Merge all axes into one and split it, which always works."""
    y = _merged(x, 0, x.rank)
    for at in range(len(target) - 1):
        y = split(y, axis=-1, parts=target[at])
    return y


def spell_shape(shape: Sequence[Size]) -> str:
    """Spell a shape as messages write it."""
    return f"[{', '.join(map(str, shape))}]"


__all__ = ["reshape"]
