"""Linear systems, inverses, determinants, and the LU and Cholesky decompositions. Errors of torch are NaN here."""

from __future__ import annotations

import math

from dovetail import ops
from dovetail.frontends.shared.dtypes import cast
from dovetail.frontends.shared.rule import Made
from dovetail.frontends.torch.importing.node import Node
from dovetail.frontends.torch.importing.rule import rule
from dovetail.frontends.torch.rules.matrices import diagonal, identity, lower, solved, together, turned, upper
from dovetail.ir import leaf
from dovetail.ir.dtype import f64, i64
from dovetail.ir.value import Value
from dovetail.ops import build


def _info(n: Node, result: int, failed: Value) -> Value | None:
    """0, or the number of the first pivot that failed; pivots are in the last axis."""
    if not n.makes(result):
        return None
    if failed.shape[-1] == 0:
        return build.zeros(n.type_of(result).shape, n.type_of(result).dtype)
    first = ops.cum_sum(ops.cast(failed, dtype=i64), axis=-1)
    clean = ops.reduce_sum(ops.cast(ops.equal(first, 0), dtype=i64), axes=(-1,))
    number = ops.where(ops.reduce_any(failed, axes=(-1,)), clean + 1, 0)
    return cast(build.squeeze_dims(number, -1), n.type_of(result).dtype)


@rule("linalg_cholesky_ex.default")
def cholesky_ex(n: Node, x: Value, *, upper: bool = False, check_errors: bool = False) -> Made:
    """The triangle whose product with its transpose is x, and whether there is one."""
    found = _cholesky(x, upper)
    return found, _info(n, 1, ops.is_nan(diagonal(found)))


@rule("cholesky.default")
def cholesky(n: Node, x: Value, upper: bool = False) -> Value:
    """The triangle whose product with its transpose is x."""
    return _cholesky(x, upper)


def _cholesky(x: Value, upper: bool) -> Value:
    return turned(ops.cholesky(turned(x))) if upper else ops.cholesky(x)


def _of_triangle(x: Value, is_upper: bool) -> Value:
    """The matrix that a Cholesky triangle is of."""
    return turned(upper(x)) @ upper(x) if is_upper else lower(x) @ turned(lower(x))


@rule("cholesky_inverse.default")
def cholesky_inverse(n: Node, x: Value, upper: bool = False) -> Value:
    """The inverse of the matrix whose Cholesky triangle is x."""
    return ops.solve(_of_triangle(x, upper), identity(x.shape, x))


@rule("cholesky_solve.default")
def cholesky_solve(n: Node, b: Value, x: Value, upper: bool = False) -> Value:
    """y with a @ y = b, from the Cholesky triangle of a."""
    return solved(_of_triangle(x, upper), b)


@rule("linalg_inv_ex.default")
def inverse(n: Node, x: Value, *, check_errors: bool = False) -> Made:
    """The inverse of each matrix, and whether there is one."""
    failed = ops.equal(diagonal(ops.lu(x)[0]), 0.0) if n.makes(1) else x
    return ops.solve(x, identity(x.shape, x)), _info(n, 1, failed)


@rule("_linalg_solve_ex.default")
def solve(n: Node, a: Value, b: Value, *, left: bool = True, check_errors: bool = False) -> Made:
    """x with a @ x = b, or x @ a = b; the LU decomposition of a, and whether there is a result."""
    vector = b.rank == 1 or (b.rank == a.rank - 1 and b.shape == a.shape[:-1])
    columns = ops.unsqueeze(b, axes=(-1,)) if vector else b
    found = solved(a, columns, left=left)
    packed = ops.lu(a if left else turned(a))
    # torch factorises the transpose of a matrix whose rows are contiguous, and gives that one back.
    if n.makes(1) or n.makes(2):
        raise n.unsupported("the LU decomposition of a solve", hint="use torch.linalg.lu_factor")
    return (
        build.squeeze_dims(found, -1) if vector else found,
        None,
        None,
        _info(n, 3, ops.equal(diagonal(packed[0]), 0.0)),
    )


def _pivots(n: Node, places: Value, result: int) -> Value:
    """Rows as LAPACK counts them, from 1."""
    return cast(places + 1, n.type_of(result).dtype)


@rule("linalg_lu_factor_ex.default")
def lu_factor(n: Node, x: Value, *, pivot: bool = True, check_errors: bool = False) -> Made:
    """L and U in one matrix, the rows that changed places, and whether U is singular."""
    found = ops.lu(x, pivot=pivot)
    return found[0], _pivots(n, found[1], 1), _info(n, 2, ops.equal(diagonal(found[0]), 0.0))


def _order(places: Value, rows: int) -> Value:
    """Where each row of a matrix comes from after its rows changed places one after the other."""
    lead = places.shape[:-1]
    order = build.broadcast_to(ops.iota(size=rows), (*lead, rows))
    if rows == 0 or places.shape[-1] == 0:
        return order
    counted = ops.iota(size=rows)

    def step(order: Value, at: Value, place: Value) -> tuple[Value]:
        other = build.expand_dims(place, -1)
        here = ops.equal(counted, at)
        there = ops.equal(counted, other)
        mine, theirs = (ops.reduce_sum(ops.where(hit, order, 0), axes=(-1,)) for hit in (here, there))
        return (ops.where(here, theirs, ops.where(there, mine, order)),)

    fronted = build.move_axis(places, -1, 0)
    return ops.scan(step, [order], [ops.iota(size=fronted.shape[0]), fronted]).carries[0]


def _permutation(n: Node, places: Value, rows: int, like: Value) -> Value:
    """P with x = P @ L @ U."""
    order = _order(places, rows)
    hit = ops.equal(ops.unsqueeze(ops.iota(size=rows), axes=(-1,)), build.expand_dims(order, -2))
    return ops.cast(hit, dtype=like.dtype)


def _triangles(packed: Value) -> tuple[Value, Value]:
    """L with ones on its diagonal, and U."""
    rows, columns = packed.shape[-2:]
    short = rows if isinstance(columns, int) and isinstance(rows, int) and rows < columns else columns
    return lower(build.cut(packed, -1, 0, short), unit=True), upper(build.cut(packed, -2, 0, short))


def _rows(n: Node, x: Value) -> int:
    rows = x.shape[-2]
    if not isinstance(rows, int):
        raise n.unsupported("matrices whose size is not known", hint="export the model with fixed sizes")
    return rows


@rule("linalg_lu.default")
def lu(n: Node, x: Value, *, pivot: bool = True) -> Made:
    """P, L and U with x = P @ L @ U; P is empty without pivots."""
    found = ops.lu(x, pivot=pivot)
    order = _permutation(n, found[1], _rows(n, x), x) if pivot else build.zeros(n.type_of(0).shape, x.dtype)
    return order, *_triangles(found[0])


@rule("lu_unpack.default")
def lu_unpack(n: Node, x: Value, pivots: Value, unpack_data: bool = True, unpack_pivots: bool = True) -> Made:
    """P, L and U of an LU decomposition in one matrix."""
    order = _permutation(n, cast(pivots, i64) - 1, _rows(n, x), x) if unpack_pivots else None
    found = _triangles(x) if unpack_data else (None, None)
    made = (order, *found)
    return tuple(build.zeros(n.type_of(i).shape, x.dtype) if m is None else m for i, m in enumerate(made))


@rule("linalg_lu_solve.default")
def lu_solve(n: Node, x: Value, pivots: Value, b: Value, *, left: bool = True, adjoint: bool = False) -> Value:
    """y with a @ y = b, or y @ a = b, from the LU decomposition of a; `adjoint` solves with the transpose of a."""
    low, high = _triangles(x)
    whole = _permutation(n, cast(pivots, i64) - 1, _rows(n, x), x) @ (low @ high)
    return solved(turned(whole) if adjoint else whole, b, left=left)


@rule("_linalg_det.default")
def det(n: Node, x: Value) -> Made:
    """The determinant of each matrix, and its LU decomposition."""
    if n.makes(1) or n.makes(2):
        raise n.unsupported("the LU decomposition of a determinant", hint="use torch.linalg.lu_factor")
    return ops.det(x), None, None


@rule("_linalg_slogdet.default")
def slogdet(n: Node, x: Value) -> Made:
    """The sign of the determinant of each matrix, and the logarithm of its modulus."""
    if n.makes(2) or n.makes(3):
        raise n.unsupported("the LU decomposition of a determinant", hint="use torch.linalg.lu_factor")
    if x.shape[-1] == 0:
        return build.full(x.shape[:-2], 1, x.dtype), build.zeros(x.shape[:-2], x.dtype), None, None
    found = ops.lu(x)
    main = diagonal(found[0])
    moved = ops.not_equal(found[1], ops.iota(size=found[1].shape[-1]))
    sign = ops.reduce_prod(ops.where(moved, -ops.sign(main), ops.sign(main)), axes=(-1,))
    size = ops.reduce_sum(ops.log(ops.abs_(main)), axes=(-1,))
    return build.squeeze_dims(sign, -1), build.squeeze_dims(size, -1), None, None


@rule("linalg_solve_triangular.default")
def solve_triangular(
    n: Node, a: Value, b: Value, *, upper: bool, left: bool = True, unitriangular: bool = False
) -> Value:
    """x with a @ x = b, or x @ a = b, where a is a triangle."""
    return solved(_triangle(a, upper, unitriangular), b, left=left)


def _triangle(a: Value, is_upper: bool, unit: bool) -> Value:
    return upper(a, unit=unit) if is_upper else lower(a, unit=unit)


@rule("triangular_solve.default")
def triangular_solve(
    n: Node, b: Value, a: Value, upper: bool = True, transpose: bool = False, unitriangular: bool = False
) -> Made:
    """x with a @ x = b where a is a triangle, and a."""
    triangle = _triangle(a, upper, unitriangular)
    found = solved(turned(triangle) if transpose else triangle, b)
    return found, together(a, b)[0]


@rule("linalg_matrix_exp.default")
def matrix_exp(n: Node, x: Value) -> Value:
    """The exponential of each matrix: a series of the matrix halved until it is small, then squared as often."""
    if x.shape[-1] == 0:
        return x
    # Each squaring doubles the error, so that all of them are computed in f64.
    x = cast(x, f64)
    size = ops.reduce_max(ops.reduce_sum(ops.abs_(x), axes=(-2,)), axes=(-1,))
    halvings = ops.maximum(ops.ceil(ops.log(ops.maximum(size, 1.0)) / math.log(2.0)) + 1.0, 0.0)
    scaled = x / ops.pow_(leaf.scalar(2.0, x.dtype), halvings)
    one = identity(x.shape, x)
    total = one
    for power in range(18, 0, -1):
        total = one + (scaled @ total) / float(power)

    def more(found: Value, left: Value) -> Value:
        return build.reshape(ops.reduce_any(ops.greater(left, 0.0), axes=tuple(range(-left.rank, 0))), ())

    def squared(found: Value, left: Value) -> tuple[Value, Value]:
        return ops.where(ops.greater(left, 0.0), found @ found, found), left - 1.0

    # A gradient needs a limit: the largest finite float can be halved no more often.
    limit = 1025 if n.dtype == f64 else 129
    return cast(ops.while_loop(more, squared, [total, halvings], limit=limit).carries[0], n.dtype)
