"""Fourier transforms, and the matrix decompositions that JAX calls LAPACK for."""

from __future__ import annotations

import re

import numpy as np

from dovetail import ops
from dovetail.frontends.jax.importing import Node, rule
from dovetail.frontends.shared.rule import Made
from dovetail.ir import leaf
from dovetail.ir.dtype import c64, f32, i64
from dovetail.ir.value import Value
from dovetail.ops import build


@rule("stablehlo.fft")
def fft(n: Node) -> Value:
    """The transform along the last axes, one after the other; pairs of real and imaginary parts are the last axis."""
    kind = re.search(r"\b(I?R?FFT)\b", str(n.attrs["fft_type"]))
    lengths = tuple(int(size) for size in n.attrs["fft_length"])
    x, count = n.x, len(lengths)
    if kind is None or x.dtype not in (f32, c64):
        raise n.unsupported(f"{n.attrs['fft_type']} of {x.dtype}")
    axes = [-2 - i for i in range(count)]  # of pairs: the last axis of x is -2
    inverse = kind[1].startswith("I")
    parts = [ops.real(x), ops.imag(x)] if x.dtype is c64 else [x, x * 0.0]
    pair = build.stack(parts, axis=-1)
    if kind[1] == "IRFFT":
        for axis in axes[1:]:
            pair = _along(pair, axis, inverse=True)
        half = build.cut(pair, -2, 0, lengths[-1] // 2 + 1)
        mirrored = ops.flip(build.cut(half, -2, 1, (lengths[-1] + 1) // 2), axes=(-2,))
        sign = leaf.constant(np.array([1.0, -1.0], pair.dtype.numpy))
        whole = ops.concat(half, mirrored * sign, axis=-2)
        return build.select(_along(whole, -2, inverse=True), axis=-1, index=0)
    for axis in axes:
        pair = _along(pair, axis, inverse=inverse)
    if kind[1] == "RFFT":
        pair = build.cut(pair, -2, 0, lengths[-1] // 2 + 1)
    real, imag = (build.select(pair, axis=-1, index=i) for i in (0, 1))
    return ops.complex_(real, imag)


def _along(pair: Value, axis: int, *, inverse: bool) -> Value:
    if axis == -2:
        return ops.fourier(pair, inverse=inverse)
    at = axis + pair.rank
    return build.move_axis(ops.fourier(build.move_axis(pair, at, -2), inverse=inverse), -2, at)


def _lapack(name: str) -> tuple[str, str]:
    """What JAX calls a function of LAPACK, for f32 and f64."""
    return f"custom_call @lapack_s{name}_ffi", f"custom_call @lapack_d{name}_ffi"


def _letter(n: Node, name: str) -> str:
    """The letter that an option of LAPACK is: `uplo = 76 : ui8` is L."""
    found = re.search(rf"\b{name} = (\d+)", str(n.attrs.get("mhlo.backend_config", "")))
    if found is None:
        raise n.unsupported(f"without the option {name}")
    return chr(int(found[1]))


def _turned(x: Value) -> Value:
    return build.swap(x, -1, -2)


def _triangle(x: Value, *, is_upper: bool, with_diagonal: bool = True) -> Value:
    """x where its triangle is, and zeros elsewhere."""
    rows, columns = (ops.iota(size=size) for size in x.shape[-2:])
    below = ops.unsqueeze(rows, axes=(-1,)) - columns
    bound = 0 if with_diagonal else -1 if is_upper else 1
    kept = (ops.less_equal if is_upper else ops.greater_equal)(below, bound)
    return ops.where(kept, x, leaf.scalar(0, x.dtype))


def _diagonal(x: Value) -> Value:
    size = x.shape[-1]
    at = ops.iota(size=size)
    here = ops.equal(ops.unsqueeze(at, axes=(-1,)), at)
    return ops.reduce_sum(ops.where(here, x, leaf.scalar(0, x.dtype)), axes=(-1,))


def _info(n: Node, at: int, failed: Value) -> Value:
    """0 where a matrix could be decomposed, else the number of its first pivot that could not."""
    wanted = n.operation.types[at]
    first = ops.cum_sum(ops.cast(failed, dtype=i64), axis=-1)
    clean = ops.reduce_sum(ops.cast(ops.equal(first, 0), dtype=i64), axes=(-1,))
    number = ops.where(ops.reduce_any(failed, axes=(-1,)), clean + 1, 0)
    return ops.cast(build.squeeze_dims(number, -1), dtype=wanted.dtype)


@rule(*_lapack("potrf"))
def potrf(n: Node) -> Made:
    """The Cholesky triangle; the other half is what x has there, as LAPACK leaves it."""
    is_upper = _letter(n, "uplo") == "U"
    whole = _triangle(n.x, is_upper=is_upper)
    symmetric = whole + _turned(_triangle(n.x, is_upper=is_upper, with_diagonal=False))
    found = ops.cholesky(symmetric)
    found = _turned(found) if is_upper else found
    failed = ops.is_nan(build.squeeze_dims(_diagonal(found), -1))
    rest = _triangle(n.x, is_upper=not is_upper, with_diagonal=False)
    return _triangle(found, is_upper=is_upper) + rest, _info(n, 1, failed)


@rule(*_lapack("getrf"))
def getrf(n: Node) -> Made:
    """L and U in one matrix, and the rows that changed places, as LAPACK counts them: from 1."""
    found = ops.lu(n.x, pivot=True)
    packed, places = found[0], found[1]
    failed = ops.equal(build.squeeze_dims(_diagonal(_squared(packed)), -1), 0.0)
    return packed, ops.cast(places + 1, dtype=n.operation.types[1].dtype), _info(n, 2, failed)


def _squared(x: Value) -> Value:
    """The square block of a matrix that has its diagonal."""
    least = min(int(str(size)) for size in x.shape[-2:])
    return build.cut(build.cut(x, -1, 0, least), -2, 0, least)


@rule(*_lapack("trsm"))
def trsm(n: Node) -> Value:
    """The solution of a triangular system."""
    a, b = n.operands
    is_upper = _letter(n, "uplo") == "U"
    kept = _triangle(a, is_upper=is_upper, with_diagonal=_letter(n, "diag") != "U")
    if _letter(n, "diag") == "U":
        at = ops.iota(size=a.shape[-1])
        kept = kept + ops.cast(ops.equal(ops.unsqueeze(at, axes=(-1,)), at), dtype=a.dtype)
    if _letter(n, "trans_x") != "N":
        kept = _turned(kept)
    if _letter(n, "side") == "L":
        return ops.solve(kept, b)
    return _turned(ops.solve(_turned(kept), _turned(b)))


@rule(*_lapack("syevd"))
def syevd(n: Node) -> Made:
    """Eigenvectors and eigenvalues of a symmetric matrix, of which one triangle is read."""
    is_upper = _letter(n, "uplo") == "U"
    whole = _triangle(n.x, is_upper=is_upper)
    symmetric = whole + _turned(_triangle(n.x, is_upper=is_upper, with_diagonal=False))
    found = ops.eigh(symmetric)
    failed = ops.is_nan(found[0])
    return found[1], found[0], _info(n, 2, failed)


@rule("stablehlo.cholesky")
def cholesky(n: Node) -> Value:
    is_lower = n.attrs.get("lower") in (True, "true")
    whole = _triangle(n.x, is_upper=not is_lower)
    symmetric = whole + _turned(_triangle(n.x, is_upper=not is_lower, with_diagonal=False))
    found = ops.cholesky(symmetric)
    return found if is_lower else _turned(found)
