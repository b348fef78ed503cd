"""QR, singular value and eigenvalue decompositions, and what follows from them."""

from __future__ import annotations

from dovetail import ops
from dovetail.frontends.shared.dtypes import cast
from dovetail.frontends.shared.rule import Made
from dovetail.frontends.torch.importing.node import Node
from dovetail.frontends.torch.importing.rule import rule
from dovetail.frontends.torch.rules.matrices import identity, turned, upper
from dovetail.ir import leaf
from dovetail.ir.dim import smallest
from dovetail.ir.value import Value
from dovetail.ops import build


@rule("geqrf.default")
def geqrf(n: Node, x: Value) -> Made:
    """R and the Householder vectors of Q in one matrix, and their factors."""
    found = ops.reflectors(x)
    return found[0], found[1]


def _reflected(packed: Value, factors: Value, x: Value, *, forward: bool) -> Value:
    """Q @ x, or Qᵀ @ x where the reflections run forward."""
    vectors = build.trilu(packed, upper=False, offset=-1) + identity(packed.shape, packed)
    count = factors.shape[-1]
    if count == 0 or x.tensor.count == 0:
        return x

    def step(found: Value, vector: Value, factor: Value) -> tuple[Value]:
        column = build.expand_dims(vector, -1)
        along = ops.reduce_sum(column * found, axes=(-2,))
        return (found - column * (along * build.expand_dims(factor, (-1, -2))),)

    columns = build.move_axis(build.cut(vectors, -1, 0, count), -1, 0)
    return ops.scan(step, [x], [columns, build.move_axis(factors, -1, 0)], reverse=not forward).carries[0]


@rule("linalg_qr.default")
def qr(n: Node, x: Value, mode: str = "reduced") -> Made:
    """Q with orthonormal columns and R with zeros below its diagonal, with x = Q @ R."""
    found = ops.reflectors(x)
    *lead, rows, columns = x.shape
    short = rows if mode == "complete" else smallest(rows, columns)
    right = upper(build.cut(found[0], -2, 0, short))
    if mode == "r":
        return build.zeros(n.type_of(0).shape, x.dtype), right
    return _reflected(found[0], found[1], identity((*lead, rows, short), x), forward=False), right


@rule("linalg_householder_product.default")
def householder_product(n: Node, x: Value, tau: Value) -> Value:
    """The first columns of the product of Householder reflections."""
    return _reflected(x, tau, identity(x.shape, x), forward=False)


@rule("ormqr.default")
def ormqr(n: Node, x: Value, tau: Value, other: Value, left: bool = True, transpose: bool = False) -> Value:
    """The product of Householder reflections, or its transpose, times another matrix on one side."""
    if left:
        return _reflected(x, tau, other, forward=transpose)
    return turned(_reflected(x, tau, turned(other), forward=not transpose))


@rule("_linalg_svd.default")
def svd(n: Node, x: Value, full_matrices: bool = False, compute_uv: bool = True, *, driver: str | None = None) -> Made:
    """U, the singular values and Vᵀ with x = U @ diag(S) @ Vᵀ."""
    if x.tensor.count == 0:
        shapes = [n.type_of(i).shape for i in range(3)]
        return tuple(identity(s, x) if len(s) == x.rank else build.zeros(s, x.dtype) for s in shapes)
    found = ops.svd(x, full=full_matrices)
    if not compute_uv:
        return build.zeros(n.type_of(0).shape, x.dtype), found[1], build.zeros(n.type_of(2).shape, x.dtype)
    return found[0], found[1], found[2]


@rule("_linalg_eigh.default")
def eigh(n: Node, x: Value, UPLO: str = "L", compute_v: bool = True) -> Made:
    """The eigenvalues of symmetric matrices, ascending, and their eigenvectors."""
    found = ops.eigh(x if UPLO.upper() == "L" else turned(x))
    return found[0], found[1] if compute_v else build.zeros(n.type_of(1).shape, x.dtype)


@rule("linalg_eig.default")
def eig(n: Node, x: Value) -> Made:
    """The eigenvalues of square matrices and their eigenvectors, as complex numbers."""
    n.type_of(0)
    found = ops.eig(x)
    return tuple(
        ops.complex_(*(build.select(found[i], axis=-1, index=part) for part in (0, 1))) if n.makes(i) else None
        for i in (0, 1)
    )


@rule("linalg_pinv.atol_rtol_tensor")
def pinv(n: Node, x: Value, *, atol: Value | None = None, rtol: Value | None = None, hermitian: bool = False) -> Value:
    """The inverse of what a matrix maps to: singular values below a tolerance count as 0."""
    rows, columns = x.shape[-2:]
    if x.tensor.count == 0:
        return build.zeros(n.shape, n.dtype)
    if hermitian:
        found = ops.eigh(x)
        values, left, right = found[0], found[1], turned(found[1])
    else:
        parts = ops.svd(x)
        left, values, right = parts[0], parts[1], parts[2]
    sizes = ops.abs_(values)
    longest = max(rows, columns) if isinstance(rows, int) and isinstance(columns, int) else None
    if longest is None:
        raise n.unsupported("matrices whose size is not known", hint="export the model with fixed sizes")
    absolute = leaf.scalar(0.0, x.dtype) if atol is None else build.expand_dims(cast(atol, x.dtype), -1)
    default = longest * (2.0**-52 if x.dtype.bits == 64 else 2.0**-23)
    relative = leaf.scalar(default, x.dtype) if rtol is None else build.expand_dims(cast(rtol, x.dtype), -1)
    if atol is not None and rtol is None:
        relative = ops.where(ops.greater(absolute, 0.0), 0.0, relative)
    kept = ops.greater(sizes, ops.maximum(absolute, relative * ops.reduce_max(sizes, axes=(-1,))))
    inverted = ops.where(kept, ops.reciprocal(ops.where(kept, values, 1.0)), 0.0)
    return turned(right) @ (build.expand_dims(inverted, -1) * turned(left))
