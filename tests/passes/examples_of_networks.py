"""An example for each canonical rule about masks, attention, norms, rotations and images as networks have them."""

from __future__ import annotations

import numpy as np

from dovetail import ops
from dovetail.ir import leaf
from dovetail.ir.dtype import FLOATS, bool_, f16, f32, f64, i8, i32, i64
from dovetail.ir.value import Value
from dovetail.ops.build import cut, swap
from tests.passes.example import NUMBERS, Example, const, matrix, vector


def _third(number: float, like: Value) -> Value:
    """A third of a number, rounded as its dtype rounds."""
    return leaf.constant(np.asarray(number, like.dtype.numpy) / np.asarray(3, like.dtype.numpy))


def _joined(x: Value) -> Value:
    return ops.merge(x, axis=-3)


def _apart(x: Value) -> Value:
    return ops.split(x, axis=-3, parts=2)


def _number(number: float) -> Value:
    return leaf.constant(np.array(number, np.float32))


def _known(x: Value) -> Value:
    """Other truths of the same shape."""
    return leaf.input("c", x.tensor)


def _bounded(x: Value) -> Value:
    """Scores of numbers up to 1."""
    return ops.matmul(ops.tanh(x), swap(ops.tanh(x), -1, -2))


def _whole(x: Value) -> Value:
    """Scores of zeros and ones."""
    truth = ops.cast(ops.greater(x, 0), dtype=x.dtype)
    return ops.matmul(truth, swap(truth, -1, -2))


def _half(x: Value, index: int) -> Value:
    """A half of numbers up to 1."""
    return ops.part(ops.tanh(x), axis=-1, index=index, parts=2)


def _angle(name: str) -> Value:
    return leaf.input(name, f32[3, 2])


def _filtered(x: Value) -> Value:
    """A convolution of numbers up to 1."""
    return ops.conv(ops.tanh(x), leaf.constant(np.full((2, 1, 2), 0.5), x.dtype))


def _mean(x: Value) -> Value:
    """The means of rows of numbers up to 1."""
    return ops.reduce_mean(ops.tanh(x), axes=(-1,))


def _wide_mask(x: Value) -> Value:
    """Numbers between -1 and 1 for each row, as f32."""
    return ops.cast(ops.tanh(ops.reduce_max(x, axes=(-1,))), dtype=f32)


def _wide(number: float, x: Value) -> Value:
    """A number of the dtype of x as f32."""
    return ops.cast(const(number, x), dtype=f32)


def _places(batches: int) -> Value:
    """Places [batches, 2, 2] along axes of size 2, the same in every batch."""
    return ops.expand(ops.unsqueeze(leaf.input("i", bool_[2, 2]), axes=(-3,)), axis=-3, size=batches)


NETWORKS: tuple[Example, ...] = (
    Example(
        "masks_first",
        lambda x: (ops.matmul(x, swap(x, -1, -2)) + x) + ops.relu(x),
        lambda x: ops.matmul(x, swap(x, -1, -2)) + (x + ops.relu(x)),
        (f32, f64),
        shape=(2, 3, 3),
    ),
    Example(
        "scaled_before_filled",
        lambda x: ops.where(ops.less(x, 0), ops.matmul(x, swap(x, -1, -2)), -1000.0) / 3,
        lambda x: ops.where(ops.less(x, 0), ops.matmul(x, swap(x, -1, -2)) / 3, _third(-1000.0, x)),
        FLOATS,
        shape=(2, 3, 3),
    ),
    Example(
        "bent_choice",
        lambda x: ops.where(x, _number(1.0), _number(0.5)) * _number(3.0),
        lambda x: ops.where(x, _number(1.0) * _number(3.0), _number(0.5) * _number(3.0)),
        (bool_,),
    ),
    Example(
        "choice_within_choice",
        lambda x: ops.where(x, _number(1.0), ops.where(_known(x), _number(0.0), _number(1.0))),
        lambda x: ops.where(ops.bit_and(_known(x), ops.bit_not(x)), _number(0.0), _number(1.0)),
        (bool_,),
    ),
    Example(
        "choice_within_choice",
        lambda x: ops.where(x, _number(1.0), ops.where(_known(x), _number(1.0), _number(0.0))),
        lambda x: ops.where(ops.bit_or(x, _known(x)), _number(1.0), _number(0.0)),
        (bool_,),
    ),
    Example(
        "choice_within_choice",
        lambda x: ops.where(x, ops.where(_known(x), _number(0.0), _number(1.0)), _number(1.0)),
        lambda x: ops.where(ops.bit_and(x, _known(x)), _number(0.0), _number(1.0)),
        (bool_,),
    ),
    Example(
        "choice_within_choice",
        lambda x: ops.where(x, ops.where(_known(x), _number(1.0), _number(0.0)), _number(1.0)),
        lambda x: ops.where(ops.bit_and(x, ops.bit_not(_known(x))), _number(0.0), _number(1.0)),
        (bool_,),
    ),
    Example(
        "choice_is_logic",
        lambda x: ops.where(x, leaf.constant(True), _known(x)),
        lambda x: ops.bit_or(x, _known(x)),
        (bool_,),
    ),
    Example(
        "choice_is_logic",
        lambda x: ops.where(x, leaf.constant(False), _known(x)),
        lambda x: ops.bit_and(_known(x), ops.bit_not(x)),
        (bool_,),
    ),
    Example(
        "choice_is_logic",
        lambda x: ops.where(x, _known(x), leaf.constant(True)),
        lambda x: ops.bit_or(ops.bit_not(x), _known(x)),
        (bool_,),
    ),
    Example(
        "choice_is_logic",
        lambda x: ops.where(x, _known(x), leaf.constant(False)),
        lambda x: ops.bit_and(x, _known(x)),
        (bool_,),
    ),
    Example(
        "truth_of_choice",
        lambda x: ops.cast(ops.where(ops.equal(x, 1), const(2, x), x), dtype=bool_),
        lambda x: ops.where(ops.equal(x, 1), ops.cast(const(2, x), dtype=bool_), ops.cast(x, dtype=bool_)),
        NUMBERS,
    ),
    Example(
        "untrue_is_zero",
        lambda x: ops.where(ops.cast(x, dtype=bool_), const(2, x), x),
        lambda x: ops.where(ops.cast(x, dtype=bool_), const(2, x), 0),
        FLOATS,
    ),
    Example(
        "clipped_choices",
        lambda x: ops.maximum(
            ops.where(x, _number(0.0), _number(-3e38)) + ops.where(_known(x), _number(-3e38), _number(0.0)),
            _number(-3e38),
        ),
        lambda x: ops.where(ops.bit_and(x, ops.bit_not(_known(x))), _number(0.0), _number(-3e38)),
        (bool_,),
    ),
    Example(
        "split_of_joined",
        lambda x: _apart(ops.matmul(_joined(x), _joined(x)) * 2),
        lambda x: ops.matmul(_apart(_joined(x)), _apart(_joined(x))) * 2,
        (i32, f32),
        shape=(2, 3, 2, 2),
    ),
    Example(
        "split_of_joined",
        lambda x: _apart(_joined(x) - ops.reduce_max(_joined(x), axes=(-1,)) + leaf.input("m", x.dtype[1, 2, 2])),
        lambda x: (
            _apart(_joined(x))
            - ops.reduce_max(_apart(_joined(x)), axes=(-1,))
            + ops.unsqueeze(leaf.input("m", x.dtype[1, 2, 2]), axes=(-3,))
        ),
        (i32, f32),
        shape=(2, 3, 2, 2),
    ),
    Example(
        "split_of_joined",
        lambda x: ops.split(
            ops.matmul(ops.merge(x, axis=-2), matrix(x)) + leaf.input("b", x.dtype[5]), axis=-2, parts=2
        ),
        lambda x: (
            ops.matmul(ops.split(ops.merge(x, axis=-2), axis=-2, parts=2), matrix(x)) + leaf.input("b", x.dtype[5])
        ),
        (i32, f32),
    ),
    Example(
        "split_of_joined",
        lambda x: ops.split(ops.matmul(ops.merge(x, axis=-2), leaf.input("w", x.dtype[2, 4, 5])), axis=-2, parts=3),
        lambda x: ops.matmul(
            ops.split(ops.merge(x, axis=-2), axis=-2, parts=3),
            ops.unsqueeze(leaf.input("w", x.dtype[2, 4, 5]), axes=(-3,)),
        ),
        (i32, f32),
        shape=(2, 3, 2, 4),
    ),
    Example(
        "split_of_joined",
        lambda x: _apart(
            ops.relu(swap(ops.gather_elements(ops.sqrt(_joined(x)), ops.cast(_places(6), dtype=i64), axis=-1), -1, -2))
        ),
        lambda x: ops.relu(
            swap(
                ops.gather_elements(ops.sqrt(_apart(_joined(x))), ops.cast(_apart(_places(6)), dtype=i64), axis=-1),
                -1,
                -2,
            )
        ),
        shape=(2, 3, 2, 2),
    ),
    # Products of queries and keys.
    Example(
        "scale_beside_product",
        lambda x: ops.matmul(ops.permute(x * 2, order=(-2, -3, -1)), swap(x, -1, -2)),
        lambda x: ops.matmul(ops.permute(x, order=(-2, -3, -1)) * 2, swap(x, -1, -2)),
        (i32, f32),
        shape=(3, 3, 4),
    ),
    Example(
        "scale_on_queries",
        lambda x: ops.matmul(x, swap(x, -1, -2) * 0.5),
        lambda x: ops.matmul(x * 0.5, swap(x, -1, -2)),
    ),
    Example(
        "masked_after_scaled",
        lambda x: (ops.matmul(x, swap(x, -1, -2)) + leaf.input("m", x.dtype[3, 3])) * 0.5,
        lambda x: ops.matmul(x, swap(x, -1, -2)) * 0.5 + leaf.input("m", x.dtype[3, 3]) * 0.5,
    ),
    Example(
        "clipped_mask",
        lambda x: ops.maximum(_bounded(x) + leaf.input("m", f32[3, 3]), _number(-3e38)),
        lambda x: _bounded(x) + ops.maximum(leaf.input("m", f32[3, 3]), _number(-3e38)),
    ),
    Example(
        "filled_by_factor",
        lambda x: _whole(x) * const([1, 0, 1], x) + const([0, -3e38, -0.0], x),
        lambda x: ops.where(leaf.constant(np.array([True, False, True])), _whole(x), _number(-3e38)),
    ),
    Example(
        "filled_by_truth",
        lambda x: (
            ops.where(leaf.input("c", bool_[3, 3]), _number(-0.0), _number(-1e4))
            + ops.cast(leaf.input("c", bool_[3, 3]), dtype=f32) * _whole(x)
        ),
        lambda x: ops.where(leaf.input("c", bool_[3, 3]), _whole(x), _number(-1e4)),
    ),
    Example(
        "slice_of_zeros_and_ones",
        lambda x: x + cut(const(np.tri(5, 4), x), -2, 1, 4),
        lambda x: x + ops.cast(cut(leaf.constant(np.tri(5, 4) > 0), -2, 1, 4), dtype=x.dtype),
        FLOATS,
    ),
    Example(
        "truths_are_cut_first",
        lambda x: cut(ops.cast(ops.greater(x, 0), dtype=x.dtype), -1, 1, 4),
        lambda x: ops.cast(cut(ops.greater(x, 0), -1, 1, 4), dtype=x.dtype),
        NUMBERS,
    ),
    # Moments.
    Example(
        "mean_of_squares_is_not_negative",
        lambda x: ops.relu(ops.reduce_mean(x * x, axes=(-1,))),
        lambda x: ops.reduce_mean(x * x, axes=(-1,)),
        FLOATS,
    ),
    Example(
        "variance_from_squares",
        lambda x: ops.reduce_mean(ops.tanh(x) * ops.tanh(x), axes=(-1,)) - _mean(x) * _mean(x),
        lambda x: ops.reduce_mean((ops.tanh(x) - _mean(x)) * (ops.tanh(x) - _mean(x)), axes=(-1,)),
    ),
    Example(
        "sum_over_count",
        lambda x: ops.reduce_sum(x, axes=(-1,)) / 4,
        lambda x: ops.reduce_mean(x, axes=(-1,)),
    ),
    Example(
        "sum_over_count",
        lambda x: ops.reduce_sum(ops.tanh(x), axes=(-2, -1)) * _third(0.25, x),
        lambda x: ops.reduce_mean(ops.tanh(x), axes=(-2, -1)),
        (f16, f32, f64),
    ),
    Example(
        "root_before_gain",
        lambda x: ops.tanh(x) * (vector(x) * ops.rsqrt(_mean(x))),
        lambda x: (ops.tanh(x) * ops.rsqrt(_mean(x))) * vector(x),
    ),
    Example(
        "centred_before_scaled",
        lambda x: ops.tanh(x) * vector(x) + (vector(x) - _mean(x) * vector(x)),
        lambda x: (ops.tanh(x) - _mean(x)) * vector(x) + vector(x),
    ),
    Example(
        "centred_before_scaled",
        lambda x: ops.tanh(x) * _mean(x) * vector(x) + (vector(x) - _mean(x) * vector(x) * _mean(x)),
        lambda x: (ops.tanh(x) - _mean(x)) * _mean(x) * vector(x) + vector(x),
    ),
    Example(
        "rotated_by_halves",
        lambda x: ops.concat(
            _half(x, 0) * _angle("c") - _half(x, 1) * _angle("s"),
            _half(x, 1) * _angle("c") + _angle("s") * _half(x, 0),
            axis=-1,
        ),
        lambda x: (
            ops.tanh(x) * ops.concat(_angle("c"), _angle("c"), axis=-1)
            + ops.concat(-_half(x, 1), _half(x, 0), axis=-1) * ops.concat(_angle("s"), _angle("s"), axis=-1)
        ),
    ),
    # Images.
    Example(
        "padded_by_conv",
        lambda x: ops.conv(ops.pad(x, const(0, x), axis=-1, before=1, after=2), x, padding=(1, 0, 0, 0)),
        lambda x: ops.conv(x, x, padding=(1, 1, 0, 2)),
        (i32,),
        shape=(2, 2, 3, 3),
    ),
    Example(
        "channels_last_later",
        lambda x: ops.permute(ops.conv(x, x), order=(-2, -1, -3)) * const([2, 3], x),
        lambda x: ops.permute(ops.conv(x, x) * ops.unsqueeze(const([2, 3], x), axes=(-2, -1)), order=(-2, -1, -3)),
        (i32,),
        shape=(2, 2, 3, 3),
    ),
    Example(
        "scores_as_wide_as_mask",
        lambda x: ops.cast(
            ops.cast(ops.matmul(ops.tanh(x) * 0.5, swap(ops.tanh(x), -1, -2)) * 2, dtype=f32) + _wide_mask(x), dtype=f16
        ),
        lambda x: ops.cast(
            ops.matmul(ops.cast(ops.tanh(x), dtype=f32) * _wide(0.5, x), swap(ops.cast(ops.tanh(x), dtype=f32), -1, -2))
            * _wide(2, x)
            + _wide_mask(x),
            dtype=f16,
        ),
        (f16,),
    ),
    Example(
        "cast_before_repeat",
        lambda x: ops.cast(ops.merge(ops.expand(x, axis=-2, size=3), axis=-2), dtype=f32),
        lambda x: ops.merge(ops.expand(ops.cast(x, dtype=f32), axis=-2, size=3), axis=-2),
        (f16, i8),
        shape=(2, 1, 4),
    ),
    Example(
        "scaled_before_shifted",
        lambda x: (_filtered(x) + const([[2], [5]], x)) * const([[3], [7]], x),
        lambda x: _filtered(x) * const([[3], [7]], x) + const([[2], [5]], x) * const([[3], [7]], x),
        shape=(2, 1, 3),
    ),
)
