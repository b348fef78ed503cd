"""One example for each rule of canonicalisation: a graph on which it has something to say, and what it says."""

from __future__ import annotations

import numpy as np

from dovetail import ops
from dovetail.ir import leaf
from dovetail.ir.dtype import FLOATS, INTEGERS, SIGNED, bool_, f16, f32, f64, i8, i32, i64, u8
from dovetail.ir.value import Value
from dovetail.ops.build import full, swap
from dovetail.ops.reshaping import reshape
from tests.passes.example import NUMBERS, Example, const, matrix, vector
from tests.passes.examples_of_convolutions import CONVOLUTIONS
from tests.passes.examples_of_loops import LOOPS
from tests.passes.examples_of_networks import NETWORKS
from tests.passes.examples_of_text import TEXT
from tests.passes.examples_of_vision import VISION


def _over(x: Value, index: int) -> Value:
    """Results of an op that has several, of a constant."""
    return ops.cast(ops.sort(leaf.constant(np.array([3, 1, 2])))[index], dtype=x.dtype)


def _second_row(x: Value) -> Value:
    """A row [1, 4] of a matrix that is known."""
    return ops.part(leaf.param("v", x.dtype[3, 4]), axis=-2, index=1, parts=3)


def _row(size: int) -> Value:
    """0, 1, 2, … as a column."""
    return ops.unsqueeze(ops.iota(size=size), axes=(-1,))


def _counting(size: int, axis: int) -> Value:
    """Numbers [2, 3, 1] that count along one of the first two axes."""
    other = -5 - axis
    numbers = ops.unsqueeze(ops.iota(size=size), axes=(other, -1))
    return ops.expand(numbers, axis=other, size=5 - size)


def _grid(x: Value) -> Value:
    """Places [5, 3, 2, 2] whose last two axes count along the second and the first axis of x."""
    first = ops.unsqueeze(ops.iota(size=2), axes=(-4, -3, -1))
    second = ops.unsqueeze(ops.iota(size=3), axes=(-4, -2, -1))
    columns = [
        ops.expand(ops.expand(c, axis=-4, size=5), axis=a, size=n) for c, a, n in ((first, -3, 3), (second, -2, 2))
    ]
    return ops.concat(*columns, axis=-1)


EXAMPLES: tuple[Example, ...] = (
    # Constants.
    Example(
        "fold_constants",
        lambda x: x + ops.exp(const([1.0], x)),
        lambda x: x + leaf.constant(np.exp(np.array([1], np.float32))),
    ),
    Example(
        "fold_item",
        lambda x: x + _over(x, 1),
        lambda x: x + ops.cast(leaf.constant(np.array([1, 2, 0])), dtype=x.dtype),
        shape=(3,),
    ),
    Example("known_extent", lambda x: x + ops.extent(size=7, dtype=x.dtype), lambda x: x + 7, NUMBERS),
    Example("constant_last", lambda x: 2 + x, lambda x: x + 2, NUMBERS),
    Example("constant_last", lambda x: ops.maximum(2, x), lambda x: ops.maximum(x, 2), NUMBERS),
    Example("zero_last", lambda x: ops.minimum(0, x), lambda x: ops.minimum(x, 0), FLOATS),
    # Casts.
    Example("cast_to_own_dtype", lambda x: ops.cast(x, dtype=x.dtype), lambda x: x, (*NUMBERS, bool_)),
    Example(
        "cast_of_cast",
        lambda x: ops.cast(ops.cast(x, dtype=f64), dtype=f32),
        lambda x: ops.cast(x, dtype=f32),
        (f16, bool_, i8),
    ),
    Example(
        "cast_of_cast", lambda x: ops.cast(ops.cast(x, dtype=i64), dtype=i8), lambda x: ops.cast(x, dtype=i8), (i32, u8)
    ),
    # Arithmetic.
    Example("add_nothing", lambda x: x + 0, lambda x: x, INTEGERS),
    Example("add_nothing", lambda x: x + -0.0, lambda x: x, FLOATS),
    Example("add_nothing", lambda x: x - 0.0, lambda x: x, FLOATS),
    Example(
        "minus_known",
        lambda x: x - leaf.constant(np.array([1, -2, 0, 3]), x.dtype),
        lambda x: x + leaf.constant(-np.array([1, -2, 0, 3], x.dtype.numpy)),
        FLOATS,
    ),
    Example(
        "nested_known",
        lambda x: (ops.tanh(x) + const([1, -2, 0, 3], x)) + const([0.5, 2, 1, 8], x),
        lambda x: ops.tanh(x) + const([1.5, 0, 1, 11], x),
        (f32, f64),
    ),
    Example("add_zero", lambda x: x + 0.0, lambda x: x, FLOATS),
    Example("neutral_one", lambda x: x * 1, lambda x: x, NUMBERS),
    Example("neutral_one", lambda x: x / 1, lambda x: x, NUMBERS),
    Example("neutral_one", lambda x: x**1, lambda x: x, NUMBERS),
    Example("times_minus_one", lambda x: x * -1, lambda x: -x, (*FLOATS, i8, i64)),
    Example("minus_negative", lambda x: x - -3, lambda x: x + 3, (*FLOATS, i8, i64)),
    Example("neg_of_neg", lambda x: ops.neg(-x), lambda x: x, NUMBERS),
    Example("sum_with_neg", lambda x: x + -ops.relu(x), lambda x: x - ops.relu(x), NUMBERS),
    Example("sum_with_neg", lambda x: -x + ops.relu(x), lambda x: ops.relu(x) - x, NUMBERS),
    Example("sum_with_neg", lambda x: x - -ops.relu(x), lambda x: x + ops.relu(x), NUMBERS),
    Example("done_twice", lambda x: ops.relu(ops.relu(x)), ops.relu, NUMBERS),
    Example("done_twice", lambda x: ops.round_(ops.round_(x)), ops.round_, FLOATS),
    Example("abs_of_neg", lambda x: ops.abs_(-x), ops.abs_, (*SIGNED, *FLOATS)),
    Example("with_itself", lambda x: ops.maximum(x, x), lambda x: x, NUMBERS),
    Example("with_the_extreme", lambda x: ops.maximum(ops.minimum(x, np.inf), -np.inf), lambda x: x, FLOATS),
    Example("maximum_is_relu", lambda x: ops.maximum(x, 0), ops.relu, NUMBERS),
    Example("choice_is_relu", lambda x: ops.where(ops.greater(x, 0), x, 0), ops.relu, INTEGERS),
    Example("choice_is_float_relu", lambda x: ops.where(ops.less(x, 0), 0, x), ops.relu, FLOATS),
    Example("power_is_square", lambda x: x**2, lambda x: x * x, NUMBERS),
    Example("power_is_cube", lambda x: x**3, lambda x: x * x * x, (*INTEGERS, f32, f64)),
    Example("one_over", lambda x: 1 / x, ops.reciprocal, FLOATS),
    Example("reciprocal_of_root", lambda x: ops.reciprocal(ops.sqrt(x)), ops.rsqrt, FLOATS),
    Example("over_root", lambda x: x / ops.sqrt(x), lambda x: x * ops.rsqrt(x), FLOATS),
    Example("over_power_of_two", lambda x: x / 8, lambda x: x * 0.125, FLOATS),
    Example("over_power_of_two", lambda x: x / -0.5, lambda x: x * -2, FLOATS),
    Example("nested_whole_numbers", lambda x: (x + 100) + 27, lambda x: x + 127, INTEGERS),
    Example("nested_whole_numbers", lambda x: (x * 3) * 5, lambda x: x * 15, INTEGERS),
    Example("nested_numbers", lambda x: (x * 0.5) * 0.25, lambda x: x * 0.125, FLOATS),
    # Comparisons, choices and bits.
    Example("not_of_not", lambda x: ops.bit_not(ops.bit_not(x)), lambda x: x, (*INTEGERS, bool_)),
    Example("not_of_equal", lambda x: ops.bit_not(ops.equal(x, 1)), lambda x: ops.not_equal(x, 1), NUMBERS),
    Example("neutral_bits", lambda x: ops.bit_and(x, True), lambda x: x, (bool_,)),
    Example("neutral_bits", lambda x: ops.bit_xor(x, 0), lambda x: x, (*INTEGERS, bool_)),
    Example("neutral_bits", lambda x: ops.bit_and(x, -1), lambda x: x, (i8, i32)),
    Example("neutral_bits", lambda x: ops.bit_and(x, 255), lambda x: x, (u8,)),
    Example("decided_bits", lambda x: ops.bit_or(x, True), lambda x: full(x.shape, True, bool_), (bool_,)),
    Example("known_choice", lambda x: ops.where(leaf.constant(True), x, 1), lambda x: x, NUMBERS),
    Example(
        "known_choice", lambda x: ops.where(leaf.constant(False), x, 1), lambda x: full(x.shape, 1, x.dtype), NUMBERS
    ),
    Example("choice_of_same", lambda x: ops.where(ops.equal(x, 1), x, x), lambda x: x, NUMBERS),
    Example(
        "choice_by_not",
        lambda x: ops.where(ops.bit_not(ops.less(x, 1)), x, 2),
        lambda x: ops.where(ops.less(x, 1), 2, x),
        FLOATS,
    ),
    Example(
        "choice_is_condition", lambda x: ops.where(x, leaf.constant(True), leaf.constant(False)), lambda x: x, (bool_,)
    ),
    Example(
        "choice_is_condition", lambda x: ops.where(x, leaf.constant(False), leaf.constant(True)), ops.bit_not, (bool_,)
    ),
    Example("not_of_order", lambda x: ops.bit_not(ops.less(x, -x)), lambda x: ops.greater_equal(x, -x), INTEGERS),
    Example("compared_with_bool", lambda x: ops.equal(x, True), lambda x: x, (bool_,)),
    Example("compared_with_bool", lambda x: ops.not_equal(x, True), ops.bit_not, (bool_,)),
    Example("number_compared_last", lambda x: ops.less(1, x), lambda x: ops.greater(x, 1), NUMBERS),
    Example("less_rather_than_greater", lambda x: ops.greater_equal(x, -x), lambda x: ops.less_equal(-x, x), NUMBERS),
    # Slices and their kin.
    Example("lone_part", lambda x: ops.part(x, axis=-1, index=0, parts=1), lambda x: x),
    Example(
        "part_of_part",
        lambda x: ops.part(ops.part(x, axis=-1, index=1, parts=2), axis=-1, index=0, parts=2),
        lambda x: ops.part(x, axis=-1, index=2, parts=4),
    ),
    Example(
        "slice_of_slice",
        lambda x: ops.slice_(ops.slice_(x, axis=-1, start=1, stop=7), axis=-1, start=2, stop=5),
        lambda x: ops.slice_(x, axis=-1, start=3, stop=6),
        shape=(2, 8),
    ),
    Example(
        "slice_of_slice",
        lambda x: ops.slice_(ops.slice_(x, axis=-1, start=1, stop=11, step=3), axis=-1, start=1, stop=4, step=2),
        lambda x: ops.slice_(x, axis=-1, start=4, stop=11, step=6),
        shape=(2, 11),
    ),
    Example("simplest_slice", lambda x: ops.slice_(x, axis=-1, start=0, stop=4), lambda x: x),
    Example(
        "simplest_slice",
        lambda x: ops.slice_(x, axis=-1, start=2, stop=4),
        lambda x: ops.part(x, axis=-1, index=1, parts=2),
    ),
    Example(
        "simplest_slice",
        lambda x: ops.slice_(x, axis=-1, start=1, stop=8, step=2),
        lambda x: ops.squeeze(ops.part(ops.split(x, axis=-1, parts=4), axis=-1, index=1, parts=2), axes=(-1,)),
        shape=(2, 8),
    ),
    Example(
        "slice_of_concat",
        lambda x: ops.slice_(ops.concat(-x, x, axis=-1), axis=-1, start=5, stop=8),
        lambda x: ops.slice_(x, axis=-1, start=1, stop=4),
    ),
    Example(
        "selection_of_view",
        lambda x: ops.squeeze(
            ops.part(ops.permute(ops.split(x, axis=-1, parts=3), order=(-2, -3, -1)), axis=-3, index=1, parts=3),
            axes=(-3,),
        ),
        lambda x: ops.part(x, axis=-1, index=1, parts=3),
        shape=(4, 6),
    ),
    Example(
        "flip_of_flip", lambda x: ops.flip(ops.flip(x, axes=(-1, -2)), axes=(-1,)), lambda x: ops.flip(x, axes=(-2,))
    ),
    Example("flip_of_one", lambda x: ops.flip(x, axes=(-1, -2)), lambda x: ops.flip(x, axes=(-1,)), shape=(2, 1, 3)),
    Example("concat_of_one", lambda x: ops.concat(x, axis=-1), lambda x: x),
    Example(
        "concat_of_nothing",
        lambda x: ops.concat(x, ops.slice_(x, axis=-1, start=0, stop=0), -x, axis=-1),
        lambda x: ops.concat(x, -x, axis=-1),
    ),
    Example(
        "concat_of_concat",
        lambda x: ops.concat(x, ops.concat(-x, x, axis=-1), axis=-1),
        lambda x: ops.concat(x, -x, x, axis=-1),
    ),
    Example(
        "concat_of_neighbours",
        lambda x: ops.concat(*(ops.part(x, axis=-1, index=i, parts=4) for i in range(4)), axis=-1),
        lambda x: ops.concat(x, axis=-1),
    ),
    Example(
        "concat_of_neighbours",
        lambda x: ops.concat(
            -x, ops.part(x, axis=-1, index=2, parts=4), ops.part(x, axis=-1, index=3, parts=4), axis=-1
        ),
        lambda x: ops.concat(-x, ops.part(x, axis=-1, index=1, parts=2), axis=-1),
    ),
    Example("pad_by_nothing", lambda x: ops.pad(x, 1, axis=-1), lambda x: x),
    Example(
        "pad_of_pad",
        lambda x: ops.pad(ops.pad(x, 1, axis=-1, before=1), 1, axis=-1, before=2, after=3),
        lambda x: ops.pad(x, 1, axis=-1, before=3, after=3),
    ),
    Example("stated_size_is_known", lambda x: ops.sized(x, axis=-1, size=4), lambda x: x),
    # Views.
    Example("differentiated", lambda x: ops.stop_gradient(x), lambda x: x),
    Example("minimal_view", lambda x: swap(swap(x, -1, -2), -1, -2), lambda x: x),
    Example("minimal_view", lambda x: ops.split(ops.merge(x, axis=-2), axis=-2, parts=2), lambda x: x),
    Example("minimal_view", lambda x: ops.expand(x, axis=-3, size=1), lambda x: x, shape=(1, 2, 3)),
    # Places that count.
    Example(
        "gather_by_counting",
        lambda x: ops.gather_nd(x, _grid(x)),
        lambda x: ops.expand(ops.unsqueeze(ops.permute(x, order=(-2, -3, -1)), axes=(-4,)), axis=-4, size=5),
        (f32, bool_),
    ),
    Example(
        "gather_by_counting",
        lambda x: ops.gather_nd(x, leaf.constant(np.stack(np.meshgrid(np.arange(2), np.arange(3), indexing="ij"), -1))),
        lambda x: x,
    ),
    Example(
        "gather_from_joined",
        lambda x: ops.gather(ops.merge(x, axis=-2), _row(2) * 3 + ops.iota(size=3), axis=-2),
        lambda x: x,
    ),
    Example(
        "gather_in_order",
        lambda x: ops.gather(x, leaf.constant(np.arange(6).reshape(2, 1, 3)), axis=-1),
        lambda x: reshape(x, (2, 2, 1, 3)),
        (f32, bool_),
        shape=(2, 6),
    ),
    Example(
        "gather_in_order",
        lambda x: ops.gather(x, ops.unsqueeze(ops.iota(size=2), axes=(-2,)), axis=-2),
        lambda x: ops.unsqueeze(x, axes=(-3,)),
        (f32, bool_),
        shape=(2, 6),
    ),
    Example(
        "scatter_over_all",
        lambda x: ops.scatter_nd(x, ops.concat(_counting(2, -3), _counting(3, -2), axis=-1), x + 1),
        lambda x: x + 1,
    ),
    Example(
        "counting_starts_at_zero",
        lambda x: ops.where(ops.greater_equal(_row(3), 0), x, -x),
        lambda x: ops.where(
            ops.expand(ops.unsqueeze(leaf.constant(np.array(True)), axes=(-2, -1)), axis=-2, size=3), x, -x
        ),
    ),
    Example(
        "counting_goes_by_one",
        lambda x: ops.where(ops.less(ops.iota(size=4), ops.unsqueeze(ops.iota(size=3) + 1, axes=(-1,))), x, -x),
        lambda x: ops.where(ops.less_equal(ops.iota(size=4), _row(3)), x, -x),
    ),
    Example(
        "counting_goes_by_one",
        lambda x: ops.where(ops.less_equal(ops.iota(size=4) + 1, _row(3)), x, -x),
        lambda x: ops.where(ops.less(ops.iota(size=4), _row(3)), x, -x),
    ),
    Example(
        "product_of_depth_one",
        lambda x: ops.matmul(const([[1], [2]], x), ops.slice_(x, axis=-2, start=0, stop=1)),
        lambda x: ops.mul(const([[1], [2]], x), ops.slice_(x, axis=-2, start=0, stop=1)),
    ),
    Example(
        "swapped_right_operand",
        lambda x: ops.matmul(x, ops.permute(x, order=(-2, -1, -3))),
        lambda x: ops.matmul(x, swap(ops.permute(x, order=(-2, -3, -1)), -1, -2)),
        (f64,),
        shape=(3, 3, 3),
    ),
    # What broadcasts by itself.
    Example(
        "ones_after_elementwise",
        lambda x: ops.unsqueeze(x, axes=(-4, -3, -2)) + ops.unsqueeze(x, axes=(-4, -3, -1)),
        lambda x: ops.unsqueeze(ops.unsqueeze(x, axes=(-2,)) + ops.unsqueeze(x, axes=(-1,)), axes=(-4, -3)),
        shape=(3,),
    ),
    Example(
        "repeat_after_elementwise",
        lambda x: x + ops.expand(ops.part(x, axis=-1, index=0, parts=4), axis=-1, size=4),
        lambda x: x + ops.part(x, axis=-1, index=0, parts=4),
        NUMBERS,
    ),
    Example(
        "repeat_after_elementwise",
        lambda x: ops.exp(ops.expand(x, axis=-2, size=3)) * 2,
        lambda x: ops.expand(ops.exp(x) * 2, axis=-2, size=3),
        shape=(2, 1, 4),
    ),
    Example(
        "repeat_after_matmul",
        lambda x: ops.matmul(ops.expand(x, axis=-3, size=5), x),
        lambda x: ops.expand(ops.matmul(x, x), axis=-3, size=5),
        (i32,),
        shape=(1, 2, 2),
    ),
    Example(
        "repeat_after_reduction",
        lambda x: ops.reduce_max(ops.expand(x, axis=-3, size=5), axes=(-1,)),
        lambda x: ops.expand(ops.reduce_max(x, axes=(-1,)), axis=-3, size=5),
        NUMBERS,
        shape=(1, 2, 3),
    ),
    Example(
        "extreme_of_a_repeat",
        lambda x: ops.reduce_min(ops.expand(x, axis=-1, size=5), axes=(-2, -1)),
        lambda x: ops.reduce_min(x, axes=(-2, -1)),
        NUMBERS,
        shape=(2, 3, 1),
    ),
    Example(
        "ones_after_reduction",
        lambda x: ops.reduce_sum(ops.unsqueeze(x, axes=(-5, -4, -2)), axes=(-1,)),
        lambda x: ops.unsqueeze(ops.reduce_sum(ops.unsqueeze(x, axes=(-2,)), axes=(-1,)), axes=(-5, -4)),
        shape=(2, 3),
    ),
    Example(
        "ones_after_scores",
        lambda x: ops.exp(ops.unsqueeze(x @ swap(x, -1, -2), axes=(-2,))),
        lambda x: ops.unsqueeze(ops.exp(x @ swap(x, -1, -2)), axes=(-2,)),
        shape=(2, 3, 4),
    ),
    Example(
        "ones_after_reduced_scores",
        lambda x: ops.reduce_max(ops.unsqueeze(x @ swap(x, -1, -2), axes=(-2,)), axes=(-1,)),
        lambda x: ops.unsqueeze(ops.reduce_max(x @ swap(x, -1, -2), axes=(-1,)), axes=(-2,)),
        shape=(2, 3, 4),
    ),
    Example(
        "leading_ones_of_a_weight",
        lambda x: x + _second_row(x),
        lambda x: x + ops.squeeze(_second_row(x), axes=(-2,)),
        NUMBERS,
    ),
    Example("leading_axes", lambda x: x + ops.unsqueeze(vector(x), axes=(-3, -2)), lambda x: x + vector(x)),
    Example(
        "leading_axes",
        lambda x: ops.matmul(x, ops.unsqueeze(matrix(x), axes=(-3,))),
        lambda x: ops.matmul(x, matrix(x)),
    ),
    Example("lone_number", lambda x: x * const([[3]], x), lambda x: x * 3, NUMBERS),
    Example("uniform_constant", lambda x: x + const([3, 3, 3, 3], x), lambda x: x + 3, NUMBERS),
    Example("leading_ones", lambda x: x * const([[[1, 2, 3, 4]]], x), lambda x: x * const([1, 2, 3, 4], x), NUMBERS),
    *NETWORKS,
    *CONVOLUTIONS,
    *LOOPS,
    *VISION,
    *TEXT,
)
