"""Linear systems and decompositions. A matrix without a result gives NaN, as in NumPy's meanings."""
# pyright: basic, reportPrivateUsage=true
# Arrays of JAX have no types here.

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dovetail.errors import UnsupportedError
from dovetail.targets.xla.package import jnp, lax

Meaning = Callable[..., Any]


def _wide(function: Meaning) -> Meaning:
    """A function of matrices that is computed in f64; floats of its results are rounded to the type of the first."""

    def meaning(x: Any, *others: Any, **attrs: Any) -> Any:
        found = function(*(v.astype(jnp.float64) for v in (x, *others)), **attrs)
        several = tuple(
            r.astype(x.dtype) if jnp.issubdtype(r.dtype, jnp.floating) else r
            for r in (found if isinstance(found, tuple) else (found,))
        )
        return several if isinstance(found, tuple) else several[0]

    return meaning


def _solve(a: Any, b: Any) -> Any:
    found = jnp.linalg.solve(a, b)
    bad = ~jnp.isfinite(found).all(axis=(-2, -1), keepdims=True)
    return jnp.where(bad, jnp.nan, found)


def _lu(x: Any, *, pivot: bool) -> Any:
    if not pivot:
        raise UnsupportedError("an LU decomposition without pivots on xla", hint="use the target cpu")
    packed, pivots, _ = lax.linalg.lu(x)
    return packed, pivots.astype(jnp.int64)


def _reflectors(x: Any) -> Any:
    packed, factors = jnp.linalg.qr(x, mode="raw")
    return jnp.swapaxes(packed, -1, -2), factors


def _svd(x: Any, *, full: bool) -> Any:
    return tuple(jnp.linalg.svd(x, full_matrices=full))


def _eigh(x: Any) -> Any:
    return tuple(jnp.linalg.eigh(x, UPLO="L", symmetrize_input=False))


def _eig(x: Any) -> Any:
    return tuple(jnp.stack([part.real, part.imag], axis=-1) for part in jnp.linalg.eig(x))


MEANINGS: dict[str, Meaning] = {
    "solve": _wide(_solve),
    "cholesky": _wide(lambda x: jnp.linalg.cholesky(x, symmetrize_input=False)),
    "lu": _wide(_lu),
    "reflectors": _wide(_reflectors),
    "svd": _wide(_svd),
    "eigh": _wide(_eigh),
    "eig": _wide(_eig),
}

__all__ = ["MEANINGS"]
