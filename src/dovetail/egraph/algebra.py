"""Algebra that may pay. Each identity holds wherever it is found; what it is worth, the cost decides.

Work that moves to where only weights are read is done once, when parameters are bound.
"""

from __future__ import annotations

from collections.abc import Iterator

from dovetail import ops
from dovetail.egraph.identity import Identity, Sight, identity
from dovetail.ir.dtype import f16
from dovetail.ir.value import Value


def _bound_matrix(w: Value, s: Value, sight: Sight) -> bool:
    """A weight and a factor that are known early, in a type whose range a product does not leave."""
    return w.rank == 2 and sight.is_constant(w, s) and w.dtype is not f16


def _one_number(w: Value, s: Value, sight: Sight) -> bool:
    return s.rank == 0 and _bound_matrix(w, s, sight)


def _row_factor(w: Value, s: Value, sight: Sight) -> bool:
    return s.rank == 1 and s.shape == w.shape[:1] and _bound_matrix(w, s, sight)


def _column_factor(w: Value, s: Value, sight: Sight) -> bool:
    return (s.rank == 0 or (s.rank == 1 and s.shape == w.shape[1:])) and _bound_matrix(w, s, sight)


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


def _matrices(a: Value, b: Value) -> bool:
    return a.rank == 2 and b.rank == 2


@identity(numerics="reassociated", when=_matrices)
def product_of_weights(x: Value, a: Value, b: Value) -> Iterator[Value]:
    """(x @ a) @ b is x @ (a @ b): which is less work, the shapes say."""
    yield (x @ a) @ b
    yield x @ (a @ b)


@identity(numerics="reassociated", when=_matrices)
def products_in_turn(x: Value, a: Value, b: Value) -> Iterator[Value]:
    """x @ (a @ b) is (x @ a) @ b."""
    yield x @ (a @ b)
    yield (x @ a) @ b


@identity()
def transposed_product(x: Value, y: Value) -> Iterator[Value]:
    """A product with its last two axes swapped is the product of the swapped operands, the other way round."""
    yield ops.permute(x @ y, order=(-1, -2))
    yield ops.permute(y, order=(-1, -2)) @ ops.permute(x, order=(-1, -2))


@identity(when=_matrices)
def joined_products(x: Value, a: Value, b: Value) -> Iterator[Value]:
    """Products of one tensor side by side are its product with the weights side by side."""
    yield ops.concat(x @ a, x @ b, axis=-1)
    yield x @ ops.concat(a, b, axis=-1)


def _weight_of_both(w: Value, sight: Sight) -> bool:
    return w.rank == 2 and sight.is_constant(w)


@identity(numerics="reassociated", when=_weight_of_both)
def product_in_parts(x: Value, y: Value, w: Value) -> Iterator[Value]:
    """What is joined to be multiplied by a weight may be multiplied by its parts, and added."""
    yield ops.concat(x, y, axis=-1) @ w
    width, whole = x.shape[-1], w.shape[-2]
    upper = ops.slice_(w, axis=-2, start=0, stop=width)
    yield x @ upper + y @ ops.slice_(w, axis=-2, start=width, stop=whole)


def _both_known(a: Value, b: Value, sight: Sight) -> bool:
    return sight.is_constant(a, b)


@identity(numerics="reassociated", when=_both_known)
def sum_of_known(x: Value, a: Value, b: Value) -> Iterator[Value]:
    """What is known early is added early."""
    yield (x + a) + b
    yield x + (a + b)


@identity(numerics="reassociated", when=_both_known)
def product_of_known(x: Value, a: Value, b: Value) -> Iterator[Value]:
    """What is known early is multiplied early."""
    yield (x * a) * b
    yield x * (a * b)


def _read_once(x: Value, y: Value, sight: Sight) -> bool:
    return x.shape == y.shape and sight.is_read_once(ops.exp(x)) and sight.is_read_once(ops.exp(y))


@identity(numerics="reassociated", when=_read_once)
def product_of_exponentials(x: Value, y: Value) -> Iterator[Value]:
    """exp(x) * exp(y) is exp(x + y), if nobody else reads either."""
    yield ops.exp(x) * ops.exp(y)
    yield ops.exp(x + y)


ALGEBRA: tuple[Identity, ...] = (
    scaled_operand,
    scaled_rows,
    scaled_columns,
    product_of_weights,
    products_in_turn,
    transposed_product,
    joined_products,
    product_in_parts,
    sum_of_known,
    product_of_known,
    product_of_exponentials,
)
"""Every identity, in the order in which they are looked for."""
