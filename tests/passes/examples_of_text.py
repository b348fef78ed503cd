"""An example for each canonical rule about masks, columns and slices as models of text and sound have them."""

from __future__ import annotations

import numpy as np

from dovetail import ops
from dovetail.ir import leaf
from dovetail.ir.dtype import FLOATS, bf16, bool_, f16, f32
from dovetail.ir.value import Value
from dovetail.ops.build import swap
from tests.passes.example import Example, const


def _scores(x: Value) -> Value:
    return ops.matmul(x, swap(x, -1, -2))


def _mask(x: Value) -> Value:
    return leaf.input("m", x.dtype[3, 3])


def _softmax(x: Value) -> Value:
    raised = ops.exp(x - ops.reduce_max(x, axes=(-1,)))
    return raised / ops.reduce_sum(raised, axes=(-1,))


def _hidden() -> Value:
    return leaf.input("h", bool_[2, 3, 4])


def _values(x: Value) -> Value:
    return leaf.input("v", x.dtype[2, 4, 5])


def _filled(x: Value, kept: bool) -> Value:
    sides = (ops.tanh(x), const(-1e9, x))
    return _softmax(ops.where(_hidden(), *(sides if kept else sides[::-1])))


def _zeroed(x: Value, kept: bool) -> Value:
    sides = (_filled(x, kept), const(0, x))
    return ops.matmul(ops.where(_hidden(), *(sides if kept else sides[::-1])), _values(x))


def _zero_for_unseen(x: Value, kept: bool) -> Value:
    seen = _hidden() if kept else ops.bit_not(_hidden())
    found = ops.matmul(_filled(x, kept), _values(x))
    return ops.where(ops.reduce_any(seen, axes=(-1,)), found, const(0, x))


def _columns(x: Value) -> Value:
    return leaf.input("k", x.dtype[2, 3, 5])


def _column_of(x: Value) -> Value:
    return ops.unsqueeze(x, axes=(-1,))


def _both(angle: Value) -> Value:
    return ops.merge(ops.expand(_column_of(angle), axis=-1, size=2), axis=-1)


def _pairs(x: Value) -> Value:
    return ops.split(x, axis=-1, size=2)


def _column(x: Value, index: int) -> Value:
    return ops.part(_pairs(x), axis=-1, index=index, parts=2)


def _neighbour(x: Value, index: int) -> Value:
    return ops.squeeze(_column(x, index), axes=(-1,))


def _every_other(x: Value, first: int) -> Value:
    """x with updates at every other place along its first axis."""
    places = leaf.constant(np.arange(first, 4, 2).reshape(-1, 1))
    return ops.scatter_nd(x, places, leaf.input("uv"[first], x.dtype[2, 3, 4]), reduction="none")


def _placed(x: Value, first: int, count: int) -> Value:
    updates = leaf.input("u", x.dtype[count, 3, 4])
    places = leaf.constant(np.arange(first, first + count)[:, None])
    return ops.scatter_nd(x, places, updates, reduction="none")


def _turned(x: Value) -> Value:
    return ops.permute(x, order=(-1, -3, -2))


def _half(x: Value, index: int) -> Value:
    return ops.part(x, axis=-1, index=index, parts=2)


def _turned_half(x: Value) -> Value:
    return ops.concat(-_half(x, 1), _half(x, 0), axis=-1)


def _angle(x: Value, name: str) -> Value:
    return leaf.input(name, x.dtype[2])


def _twice(x: Value) -> Value:
    return ops.concat(x, x, axis=-1)


def _other(x: Value, index: int) -> Value:
    """Every other feature."""
    return ops.squeeze(_half(ops.split(x, axis=-1, size=2), index), axes=(-1,))


def _in_turns(x: Value) -> Value:
    """Every other feature from the first, then those from the second."""
    return ops.merge(swap(ops.split(x, axis=-1, size=2), -1, -2), axis=-1)


TEXT: tuple[Example, ...] = (
    Example(
        "mask_subtracted",
        lambda x: _scores(x) - _mask(x) * const(1000, x),
        lambda x: _scores(x) + _mask(x) * const(-1000, x),
        FLOATS,
    ),
    Example(
        "mask_subtracted",
        lambda x: (_scores(x) + ops.relu(_mask(x))) - _mask(x) / const(0.5, x),
        lambda x: (_scores(x) + ops.relu(_mask(x))) + _mask(x) / const(-0.5, x),
    ),
    Example(
        "mask_subtracted",
        lambda x: _scores(x) - ops.relu(_mask(x)),
        lambda x: _scores(x) + ops.neg(ops.relu(_mask(x))),
        FLOATS,
    ),
    Example(
        "zeroed_where_filled",
        lambda x: _zeroed(x, False),
        lambda x: _zero_for_unseen(x, False),
    ),
    Example(
        "zeroed_where_filled",
        lambda x: _zeroed(x, True),
        lambda x: _zero_for_unseen(x, True),
    ),
    Example(
        "weights_on_the_left",
        lambda x: ops.matmul(swap(_values(x), -1, -2), swap(_softmax(x), -1, -2)),
        lambda x: swap(ops.matmul(_softmax(x), swap(swap(_values(x), -1, -2), -1, -2)), -1, -2),
    ),
    Example(
        "rows_on_both_sides",
        lambda x: ops.matmul(swap(x, -1, -2), _columns(x)),
        lambda x: ops.matmul(swap(x, -1, -2), swap(swap(_columns(x), -1, -2), -1, -2)),
        FLOATS,
    ),
    Example(
        "scatter_of_slice",
        lambda x: _placed(x, 1, 2),
        lambda x: ops.concat(
            ops.part(x, axis=-3, index=0, parts=4),
            leaf.input("u", x.dtype[2, 3, 4]),
            ops.part(x, axis=-3, index=3, parts=4),
            axis=-3,
        ),
        shape=(4, 3, 4),
    ),
    Example(
        "lowered_twice",
        lambda x: _softmax(x - ops.reduce_max(x, axes=(-1,))),
        _softmax,
        FLOATS,
    ),
    Example(
        "rotated_by_neighbours",
        lambda x: ops.concat(
            _column_of(_neighbour(x, 0) * _angle(x, "c") - _neighbour(x, 1) * _angle(x, "s")),
            _column_of(_neighbour(x, 0) * _angle(x, "s") + _neighbour(x, 1) * _angle(x, "c")),
            axis=-1,
        ),
        lambda x: _pairs(
            x * _both(_angle(x, "c"))
            + ops.merge(ops.concat(-_column(x, 1), _column(x, 0), axis=-1), axis=-1) * _both(_angle(x, "s"))
        ),
    ),
    Example(
        "scatters_in_turns",
        lambda x: _every_other(_every_other(x, 0), 1),
        lambda x: ops.merge(
            ops.concat(*(ops.unsqueeze(leaf.input(name, x.dtype[2, 3, 4]), axes=(-3,)) for name in "uv"), axis=-3),
            axis=-3,
        ),
        shape=(4, 3, 4),
    ),
    Example(
        "concat_before_permute",
        lambda x: ops.concat(*(ops.unsqueeze(_turned(v), axes=(-3,)) for v in (x, ops.relu(x))), axis=-3),
        lambda x: ops.permute(
            ops.concat(*(ops.unsqueeze(v, axes=(-1,)) for v in (x, ops.relu(x))), axis=-1), order=(-2, -1, -4, -3)
        ),
    ),
    Example(
        "concat_before_permute",
        lambda x: ops.concat(_turned(x), _turned(ops.relu(x)), axis=-3),
        lambda x: _turned(ops.concat(x, ops.relu(x), axis=-1)),
    ),
    Example(
        "concat_before_permute",
        lambda x: ops.concat(ops.permute(x, order=(-1, -3, -2)), ops.permute(ops.relu(x), order=(-1, -2, -3)), axis=-3),
        lambda x: _turned(ops.concat(x, ops.permute(ops.relu(x), order=(-2, -3, -1)), axis=-1)),
        shape=(3, 3, 4),
    ),
    Example(
        "rotated_by_halves",
        lambda x: ops.concat(
            _half(x, 0) * _angle(x, "c") + _half(x, 1) * _angle(x, "s"),
            _half(x, 1) * _angle(x, "c") - _half(x, 0) * _angle(x, "s"),
            axis=-1,
        ),
        lambda x: x * _twice(_angle(x, "c")) + _turned_half(x) * _twice(-_angle(x, "s")),
    ),
    Example(
        "rotated_by_halves",
        lambda x: ops.concat(
            _half(x, 0) * _angle(x, "c") + _half(x, 1) * _angle(x, "s"),
            _half(x, 0) * -_angle(x, "s") + _half(x, 1) * _angle(x, "c"),
            axis=-1,
        ),
        lambda x: x * _twice(_angle(x, "c")) + _turned_half(x) * _twice(-_angle(x, "s")),
    ),
    Example(
        "rotated_by_halves",
        lambda x: ops.concat(
            _other(x, 0) * _angle(x, "c") - _other(x, 1) * _angle(x, "s"),
            _other(x, 1) * _angle(x, "c") + _other(x, 0) * _angle(x, "s"),
            axis=-1,
        ),
        lambda x: _in_turns(x) * _twice(_angle(x, "c")) + _turned_half(_in_turns(x)) * _twice(_angle(x, "s")),
    ),
    Example(
        "turned_the_other_way",
        lambda x: ops.concat(_half(x, 1), -_half(x, 0), axis=-1) * leaf.input("s", x.dtype[4]),
        lambda x: _turned_half(x) * -leaf.input("s", x.dtype[4]),
        FLOATS,
    ),
    Example(
        "neutral_bits",
        lambda x: ops.bit_and(x, leaf.constant(np.ones((3, 1), bool))),
        lambda x: ops.expand(ops.unsqueeze(x, axes=(-2,)), axis=-2, size=3),
        (bool_,),
        shape=(4,),
    ),
    Example(
        "bent_choice",
        lambda x: ops.cast(x, dtype=f32) * leaf.scalar(-1e9, f32),
        lambda x: ops.where(
            x, leaf.scalar(1.0, f32) * leaf.scalar(-1e9, f32), leaf.scalar(0.0, f32) * leaf.scalar(-1e9, f32)
        ),
        (bool_,),
    ),
    Example(
        "number_chosen_last",
        lambda x: ops.where(leaf.constant(np.array([True, False, True, False])), const(-100, x), x),
        lambda x: ops.where(leaf.constant(np.array([False, True, False, True])), x, const(-100, x)),
        FLOATS,
    ),
    Example(
        "keys_cast_before_swapped",
        lambda x: ops.matmul(leaf.input("q", f32[2, 3, 4]), ops.cast(swap(x, -1, -2), dtype=f32)),
        lambda x: ops.matmul(leaf.input("q", f32[2, 3, 4]), swap(ops.cast(x, dtype=f32), -1, -2)),
        (f16, bf16),
    ),
    Example(
        "cap_beside_tanh",
        lambda x: ops.tanh(_scores(x) * const(0.01, x)) * const(50, x),
        lambda x: ops.tanh(_scores(x) * const(np.float32(0.01) * 50.0, x) / const(50, x)) * const(50, x),
    ),
)
