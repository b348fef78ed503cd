"""Algebra that may pay. Each identity holds wherever it is found; what it is worth, the cost decides.

Work that moves to where only weights are read is done once, when parameters are bound.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from dovetail import ops
from dovetail.egraph.identity import Identity, Sight, identity
from dovetail.ir.dtype import bf16, f16
from dovetail.ir.value import Value
from dovetail.library.conv_bias_act import is_one_for_each_channel
from dovetail.ops.convolution import conv


def _bound_matrix(w: Value, s: Value, sight: Sight) -> bool:
    """Return whether a weight and a factor are known early, in a type whose range the product does not leave."""
    return w.rank == 2 and sight.is_constant(w, s) and w.dtype is not f16


def _one_number(w: Value, s: Value, sight: Sight) -> bool:
    return s.rank == 0 and _bound_matrix(w, s, sight)


def _row_factor(w: Value, s: Value, sight: Sight) -> bool:
    return s.rank == 1 and s.shape == w.shape[:1] and _bound_matrix(w, s, sight)


def _column_factor(x: Value, w: Value, s: Value, sight: Sight) -> bool:
    """Return whether a factor scales columns. Where others read the product as it is, it would be computed twice."""
    fits = s.rank == 0 or (s.rank == 1 and s.shape == w.shape[1:])
    return fits and _bound_matrix(w, s, sight) and sight.is_read_once(x @ w)


@identity(numerics="reassociated", when=_one_number)
def scaled_operand(x: Value, w: Value, s: Value) -> Iterator[Value]:
    """A number that scales what a weight multiplies scales the weight."""
    yield (x * s) @ w
    yield x @ (w * s)


@identity(numerics="reassociated", when=_row_factor)
def scaled_rows(x: Value, w: Value, s: Value) -> Iterator[Value]:
    """A gain on what a weight multiplies is a gain on the weight's rows, as after a norm."""
    yield (x * s) @ w
    yield x @ (w * ops.unsqueeze(s, axes=(-1,)))


@identity(numerics="reassociated", when=_column_factor)
def scaled_columns(x: Value, w: Value, s: Value) -> Iterator[Value]:
    """A factor of a product with a weight is one of the weight's columns."""
    yield (x @ w) * s
    yield x @ (w * s)


@identity(numerics="reassociated", when=_row_factor)
def shifted_rows(x: Value, w: Value, s: Value) -> Iterator[Value]:
    """A shift of what a weight multiplies is a shift of the product, as after a norm."""
    yield (x + s) @ w
    yield x @ w + ops.squeeze(ops.unsqueeze(s, axes=(-2,)) @ w, axes=(-2,))


def _both_known(a: Value, b: Value, sight: Sight) -> bool:
    return sight.is_constant(a, b)


def _known_in_turn(x: Value, a: Value, b: Value, sight: Sight) -> bool:
    """Known early both; what the first makes is for the second alone, or work would be done for each."""
    return _both_known(a, b, sight) and all([sight.is_read_once(v) for v in (x + a, a + x)])


def _known_around_a_product(x: Value, a: Value, b: Value, sight: Sight) -> bool:
    return x.dtype is not f16 and sight.is_one_of(x, ops.matmul, conv) and _known_in_turn(x, a, b, sight)


@identity(numerics="reassociated", when=_known_around_a_product)
def scaled_sum(x: Value, a: Value, b: Value) -> Iterator[Value]:
    """A known factor of a product and its bias is one of each: a batch norm after a layer."""
    yield (x + a) * b
    yield x * b + a * b


def _channel_factor(
    x: Value, w: Value, s: Value, strides: Any, dilations: Any, padding: Any, groups: Any, sight: Sight
) -> bool:
    """Return whether a factor is one number, or one for each channel of the weights, known early, of a value with one
    reader.
    """
    fits = s.rank == 0 or is_one_for_each_channel(s, w)
    if not fits or not sight.is_constant(w, s) or w.dtype is f16:
        return False
    return sight.is_read_once(conv(x, w, strides=strides, dilations=dilations, padding=padding, groups=groups))


@identity(numerics="reassociated", when=_channel_factor)
def scaled_channels(
    x: Value, w: Value, s: Value, *, strides: Any, dilations: Any, padding: Any, groups: Any
) -> Iterator[Value]:
    """A factor of a convolution's channels is one of its weights."""
    yield conv(x, w, strides=strides, dilations=dilations, padding=padding, groups=groups) * s
    weights = w * (s if s.rank == 0 else ops.unsqueeze(s, axes=(1 - w.rank,)))
    yield conv(x, weights, strides=strides, dilations=dilations, padding=padding, groups=groups)


def _number_of_weights(w: Value, s: Value, sight: Sight) -> bool:
    return s.rank == 0 and sight.is_constant(w, s) and w.dtype is not f16


@identity(numerics="reassociated", when=_number_of_weights)
def scaled_image(
    x: Value, w: Value, s: Value, *, strides: Any, dilations: Any, padding: Any, groups: Any
) -> Iterator[Value]:
    """A number that scales an image scales the weights; the zeros around it stay zeros."""
    yield conv(x * s, w, strides=strides, dilations=dilations, padding=padding, groups=groups)
    yield conv(x, w * s, strides=strides, dilations=dilations, padding=padding, groups=groups)


def _matrices(a: Value, b: Value) -> bool:
    return a.rank == 2 and b.rank == 2


@identity(numerics="reassociated")
def product_of_weights(x: Value, a: Value, b: Value) -> Iterator[Value]:
    """(x @ a) @ b is x @ (a @ b): which is less work, the shapes say."""
    yield (x @ a) @ b
    yield x @ (a @ b)


@identity(numerics="reassociated")
def products_in_turn(x: Value, a: Value, b: Value) -> Iterator[Value]:
    """x @ (a @ b) is (x @ a) @ b."""
    yield x @ (a @ b)
    yield (x @ a) @ b


@identity(numerics="reassociated")
def transposed_product(x: Value, y: Value) -> Iterator[Value]:
    """A product with its last two axes swapped is the product of the swapped operands, the other way round."""
    yield ops.permute(x @ y, order=(-1, -2))
    yield ops.permute(y, order=(-1, -2)) @ ops.permute(x, order=(-1, -2))


@identity(numerics="reassociated", when=_matrices)
def joined_products(x: Value, a: Value, b: Value) -> Iterator[Value]:
    """Products of one tensor side by side are its product with the weights side by side."""
    yield ops.concat(x @ a, x @ b, axis=-1)
    yield x @ ops.concat(a, b, axis=-1)


@identity(numerics="reassociated", when=_matrices)
def three_joined_products(x: Value, a: Value, b: Value, c: Value) -> Iterator[Value]:
    """The same with three of them: queries, keys and values."""
    yield ops.concat(x @ a, x @ b, x @ c, axis=-1)
    yield x @ ops.concat(a, b, c, axis=-1)


def _one_matrix(w: Value) -> bool:
    return w.rank == 2


@identity(numerics="reassociated", when=_one_matrix)
def stacked_products(x: Value, y: Value, w: Value) -> Iterator[Value]:
    """Products with one weight, one above the other, are the product of what stands one above the other."""
    yield ops.concat(x @ w, y @ w, axis=-2)
    yield ops.concat(x, y, axis=-2) @ w


def _one_of_them_known(x: Value, y: Value, w: Value, sight: Sight) -> bool:
    return w.rank == 2 and sight.is_constant(w) and (sight.is_constant(x) or sight.is_constant(y))


@identity(numerics="reassociated", when=_one_of_them_known)
def product_of_stacked(x: Value, y: Value, w: Value) -> Iterator[Value]:
    """Rows that are known early, a prefix or a class token, are multiplied by a weight early."""
    yield ops.concat(x, y, axis=-2) @ w
    yield ops.concat(x @ w, y @ w, axis=-2)


def _weight_of_both(w: Value, sight: Sight) -> bool:
    return w.rank == 2 and sight.is_constant(w)


@identity(numerics="reassociated", when=_weight_of_both)
def product_of_slices(x: Value, y: Value, w: Value) -> Iterator[Value]:
    """The product of a concatenation and a weight is the sum of the products of their slices."""
    yield ops.concat(x, y, axis=-1) @ w
    width, whole = x.shape[-1], w.shape[-2]
    upper = ops.slice_(w, axis=-2, start=0, stop=width)
    yield x @ upper + y @ ops.slice_(w, axis=-2, start=width, stop=whole)


@identity(numerics="reassociated", when=_known_in_turn)
def sum_of_known(x: Value, a: Value, b: Value) -> Iterator[Value]:
    """Addends that are known early are added early."""
    yield (x + a) + b
    yield x + (a + b)


@identity(numerics="reassociated", when=_both_known)
def product_of_known(x: Value, a: Value, b: Value) -> Iterator[Value]:
    """Factors that are known early are multiplied early."""
    yield (x * a) * b
    yield x * (a * b)


def _read_once(x: Value, y: Value, sight: Sight) -> bool:
    return x.shape == y.shape and sight.is_read_once(ops.exp(x)) and sight.is_read_once(ops.exp(y))


@identity(numerics="reassociated", when=_read_once)
def product_of_exponentials(x: Value, y: Value) -> Iterator[Value]:
    """exp(x) * exp(y) is exp(x + y), if nothing else reads either."""
    yield ops.exp(x) * ops.exp(y)
    yield ops.exp(x + y)


@identity(numerics="reassociated", when=_read_once)
def quotient_of_exponentials(x: Value, y: Value) -> Iterator[Value]:
    """exp(x) / exp(y) is exp(x - y), if nothing else reads either."""
    yield ops.exp(x) / ops.exp(y)
    yield ops.exp(x - y)


@identity(numerics="reassociated")
def log_of_an_exponential(x: Value) -> Iterator[Value]:
    """log(exp(x)) is x, which does not overflow."""
    yield ops.log(ops.exp(x))
    yield x


@identity(numerics="reassociated")
def log_of_a_share(x: Value, *, axes: Any) -> Iterator[Value]:
    """The log of an exponential's share of their sum needs no quotient, as in a softmax without its shift."""
    yield ops.log(ops.exp(x) / ops.reduce_sum(ops.exp(x), axes=axes))
    yield x - ops.log(ops.reduce_sum(ops.exp(x), axes=axes))


def _known_table(table: Value, sight: Sight) -> bool:
    # A table of two bytes would be held a second time, as floats, for the few rows that a run reads.
    return sight.is_constant(table) and table.dtype not in (f16, bf16)


@identity(when=_known_table)
def cast_of_a_gather(table: Value, indices: Value, *, axis: Any, dtype: Any) -> Iterator[Value]:
    """A cast of a gather is a gather from a table that was cast early."""
    yield ops.cast(ops.gather(table, indices, axis=axis), dtype=dtype)
    yield ops.gather(ops.cast(table, dtype=dtype), indices, axis=axis)


def _some_known_or_cast(x: Value, y: Value, sight: Sight) -> bool:
    return any(sight.is_constant(v) or sight.is_one_of(v, ops.cast) for v in (x, y))


@identity(when=_some_known_or_cast)
def cast_of_parts(x: Value, y: Value, *, axis: Any, dtype: Any) -> Iterator[Value]:
    """A cast of a concatenation is one of its operands: early where they are known, and undone where they were cast."""
    yield ops.cast(ops.concat(x, y, axis=axis), dtype=dtype)
    yield ops.concat(ops.cast(x, dtype=dtype), ops.cast(y, dtype=dtype), axis=axis)


def _was_cast(x: Value, sight: Sight) -> bool:
    return sight.is_one_of(x, ops.cast)


@identity(when=_was_cast)
def cast_of_a_permute(x: Value, *, order: Any, dtype: Any) -> Iterator[Value]:
    """A cast moves through a permute to the cast below it, which may undo it."""
    yield ops.cast(ops.permute(x, order=order), dtype=dtype)
    yield ops.permute(ops.cast(x, dtype=dtype), order=order)


ALGEBRA: tuple[Identity, ...] = (
    scaled_operand,
    scaled_rows,
    scaled_columns,
    shifted_rows,
    scaled_sum,
    scaled_channels,
    scaled_image,
    product_of_weights,
    products_in_turn,
    transposed_product,
    joined_products,
    three_joined_products,
    stacked_products,
    product_of_stacked,
    product_of_slices,
    sum_of_known,
    product_of_known,
    product_of_exponentials,
    quotient_of_exponentials,
    log_of_an_exponential,
    log_of_a_share,
    cast_of_a_gather,
    cast_of_parts,
    cast_of_a_permute,
)
"""Every identity, in the order in which they are looked for."""
