"""Linear systems and decompositions of the matrices in the last two axes, as LAPACK has them.

A matrix that has no result (singular, not positive definite) gives NaN instead of an error: the others of its batch
have one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from dovetail.errors import TypeRuleError
from dovetail.ir.dim import Size, smallest
from dovetail.ir.dtype import FLOATS, i64
from dovetail.ir.fact import Facts
from dovetail.ir.type import TensorType, TupleType, Type
from dovetail.ir.value import Value
from dovetail.ops import adjoint, contraction, elementwise, generate, movement
from dovetail.ops.gradient import Parts, Refused
from dovetail.ops.primitive import Array, family, primitive
from dovetail.ops.rules import one_dtype, tensor
from dovetail.ops.special import wide


def _matrices(facts: Facts, x: Type) -> TensorType:
    of = tensor(x)
    if of.rank < 2:
        raise TypeRuleError(f"{facts.op} of {of}", hint="it takes matrices")
    one_dtype(facts, [of], FLOATS)
    return of


def _square(facts: Facts, x: Type) -> TensorType:
    of = _matrices(facts, x)
    facts.equal(of.shape[-2], of.shape[-1], "the rows of a square matrix, against its columns")
    return of


def _cubic(result: Type, operands: tuple[Type, ...], attrs: Mapping[str, Any]) -> Size:
    """About one operation for each element and each row."""
    of = tensor(operands[0])
    return of.count * of.shape[-1]


def _without(reason: str) -> Refused:
    return Refused(f"the gradient of {reason} is not there", "compute it with solve, cholesky or eigh")


def _one_by_one(function: Callable[..., Array], *stacks: Array) -> Array:
    """Apply a function to stacks of matrices; where LAPACK refuses one of them, its result alone is NaN."""
    try:
        return function(*stacks)
    except np.linalg.LinAlgError:
        lead = stacks[0].shape[:-2]
        like = stacks[-1]
        results = np.full(like.shape, np.nan, like.dtype)
        for at in np.ndindex(*lead):
            try:
                results[at] = function(*(stack[at] for stack in stacks))
            except np.linalg.LinAlgError:
                continue
        return results


def _solve(facts: Facts, a: Type, b: Type) -> Type:
    of, to = _square(facts, a), _matrices(facts, b)
    one_dtype(facts, [of, to], FLOATS)
    if of.rank != to.rank:
        raise TypeRuleError(f"{facts.op} of {of} and {to}", hint="bring both to one rank")
    for left, right in zip(of.shape[:-1], to.shape[:-1], strict=True):
        facts.equal(left, right, "the batches and rows of a system, against those of its right-hand side")
    return to


def _solve_pull(g: Value, y: Value, a: Value, b: Value) -> Parts:
    right = solve(adjoint.transposed(a), g)
    return -contraction.matmul(right, adjoint.transposed(y)), right


@primitive(_solve, flops=_cubic, pull=_solve_pull)
def solve(a: Array, b: Array) -> Array:
    """x with a @ x = b; NaN where a is singular."""
    kind = wide(a.dtype)
    return _one_by_one(np.linalg.solve, a.astype(kind), b.astype(kind)).astype(b.dtype)


def _symmetric_pull(g: Value) -> Value:
    """Return a gradient of all elements of a symmetric matrix as one of its lower triangle, which alone is read."""
    rows = movement.unsqueeze(generate.iota(size=g.shape[-2]), axes=(-1,))
    columns = generate.iota(size=g.shape[-1])
    both = elementwise.where(elementwise.equal(rows, columns), g, g + adjoint.transposed(g))
    return elementwise.where(elementwise.greater_equal(rows, columns), both, 0.0)


def _cholesky_pull(g: Value, y: Value, x: Value) -> Parts:
    rows = movement.unsqueeze(generate.iota(size=y.shape[-2]), axes=(-1,))
    columns = generate.iota(size=y.shape[-1])
    turned = adjoint.transposed(y)
    inner = contraction.matmul(turned, g)
    halved = elementwise.where(elementwise.equal(rows, columns), inner * 0.5, inner)
    lower = elementwise.where(elementwise.greater_equal(rows, columns), halved, 0.0)
    left = solve(turned, lower)
    whole = adjoint.transposed(solve(turned, adjoint.transposed(left)))
    return (_symmetric_pull((whole + adjoint.transposed(whole)) * 0.5),)


def _same(facts: Facts, x: Type) -> Type:
    return _square(facts, x)


@primitive(_same, flops=_cubic, pull=_cholesky_pull)
def cholesky(x: Array) -> Array:
    """The lower triangle l with l @ lᵀ = x, of which the lower triangle is read; NaN where x is not positive."""
    return _one_by_one(np.linalg.cholesky, x.astype(wide(x.dtype))).astype(x.dtype)


def _lu(facts: Facts, x: Type, *, pivot: bool) -> Type:
    of = _matrices(facts, x)
    short = smallest(of.shape[-2], of.shape[-1])
    return TupleType((of, TensorType(i64, (*of.shape[:-2], short))))


@primitive(_lu, flops=_cubic, pull=_without("an LU decomposition"))
def lu(x: Array, *, pivot: bool = True) -> tuple[Array, Array]:
    """L below the diagonal and U on and above it, and the row that each row changed places with, in that order."""
    work = x.astype(wide(x.dtype)).reshape(math.prod(x.shape[:-2]), *x.shape[-2:])
    rows, columns = work.shape[-2:]
    each, short = np.arange(len(work)), min(rows, columns)
    places = np.zeros((len(work), short), np.int64)
    places[:] = np.arange(short)
    with np.errstate(all="ignore"):
        for k in range(short):
            if pivot:
                places[:, k] = k + np.argmax(np.abs(work[:, k:, k]), axis=-1)
                swapped = work[each, places[:, k]].copy()
                work[each, places[:, k]] = work[:, k]
                work[:, k] = swapped
            top = work[:, k, k]
            # A column of zeros stays as it is, as LAPACK leaves it.
            work[:, k + 1 :, k] /= np.where(top == 0, 1, top)[:, None]
            work[:, k + 1 :, k + 1 :] -= work[:, k + 1 :, k, None] * work[:, k, None, k + 1 :]
    return work.reshape(x.shape).astype(x.dtype), places.reshape(*x.shape[:-2], short)


def _reflected(facts: Facts, x: Type) -> Type:
    of = _matrices(facts, x)
    return TupleType((of, TensorType(of.dtype, (*of.shape[:-2], smallest(of.shape[-2], of.shape[-1])))))


@primitive(_reflected, flops=_cubic, pull=_without("a QR decomposition"))
def reflectors(x: Array) -> tuple[Array, Array]:
    """R on and above the diagonal, the Householder vectors of Q below it, and their factors."""
    if x.size == 0:
        return x, np.zeros((*x.shape[:-2], min(x.shape[-2:])), x.dtype)
    packed, factors = np.linalg.qr(x.astype(wide(x.dtype)), mode="raw")
    return np.swapaxes(packed, -1, -2).astype(x.dtype), factors.astype(x.dtype)


def _svd(facts: Facts, x: Type, *, full: bool) -> Type:
    of = _matrices(facts, x)
    *lead, rows, columns = of.shape
    short = smallest(rows, columns)
    left, right = (rows, columns) if full else (short, short)
    shapes = ((*lead, rows, left), (*lead, short), (*lead, right, columns))
    return TupleType(tuple(TensorType(of.dtype, shape) for shape in shapes))


@primitive(_svd, flops=_cubic, pull=_without("a singular value decomposition"))
def svd(x: Array, *, full: bool = False) -> tuple[Array, Array, Array]:
    """u, s and v with x = u @ diag(s) @ v; the s descend."""
    factors = np.linalg.svd(x.astype(wide(x.dtype)), full_matrices=full)
    return factors[0].astype(x.dtype), factors[1].astype(x.dtype), factors[2].astype(x.dtype)


def _eigh(facts: Facts, x: Type) -> Type:
    of = _square(facts, x)
    return TupleType((TensorType(of.dtype, of.shape[:-1]), of))


def _eigh_pull(g: tuple[Value | None, ...], y: Value, x: Value) -> Parts:
    values, vectors = y[0], y[1]
    turned = adjoint.transposed(vectors)
    rows = movement.unsqueeze(generate.iota(size=x.shape[-2]), axes=(-1,))
    diagonal = elementwise.equal(rows, generate.iota(size=x.shape[-1]))
    inner: Value | None = None
    if g[1] is not None:
        apart = movement.unsqueeze(values, axes=(-2,)) - movement.unsqueeze(values, axes=(-1,))
        inner = elementwise.where(
            diagonal, 0.0, contraction.matmul(turned, g[1]) / elementwise.where(diagonal, 1.0, apart)
        )
    if g[0] is not None:
        straight = elementwise.where(diagonal, movement.unsqueeze(g[0], axes=(-1,)), 0.0)
        inner = straight if inner is None else inner + straight
    if inner is None:
        return (None,)
    whole = contraction.matmul(contraction.matmul(vectors, inner), turned)
    return (_symmetric_pull((whole + adjoint.transposed(whole)) * 0.5),)


@primitive(_eigh, flops=_cubic, pull=_eigh_pull)
def eigh(x: Array) -> tuple[Array, Array]:
    """Eigenvalues of a symmetric matrix, ascending, and its eigenvectors as columns; the lower triangle is read."""
    values, vectors = np.linalg.eigh(x.astype(wide(x.dtype)))
    return values.astype(x.dtype), vectors.astype(x.dtype)


def _eig(facts: Facts, x: Type) -> Type:
    of = _square(facts, x)
    return TupleType((TensorType(of.dtype, (*of.shape[:-1], 2)), TensorType(of.dtype, (*of.shape, 2))))


@primitive(_eig, flops=_cubic, pull=_without("eigenvalues of any matrix"))
def eig(x: Array) -> tuple[Array, Array]:
    """Eigenvalues of a square matrix and its eigenvectors as columns; real and imaginary parts in a last axis."""
    parts = np.linalg.eig(x.astype(wide(x.dtype)))
    pairs = [np.stack([np.real(part), np.imag(part)], axis=-1).astype(x.dtype) for part in parts]
    return pairs[0], pairs[1]


FAMILY = family(globals())


__all__ = ["cholesky", "eig", "eigh", "lu", "reflectors", "solve", "svd"]
