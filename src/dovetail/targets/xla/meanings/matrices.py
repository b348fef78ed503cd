"""Linear systems and decompositions. A matrix without a result gives NaN, as in NumPy's meanings."""
# pyright: basic, reportPrivateUsage=true
# Arrays of JAX have no types here.

from __future__ import annotations

from typing import Any

from dovetail.targets.xla.meanings.elementwise import Meaning
from dovetail.targets.xla.package import jnp, lax


def _wide(function: Meaning) -> Meaning:
    """A function of matrices that is computed in f64; floats of its results are rounded to the type of the first."""

    def meaning(x: Any, *others: Any, **attrs: Any) -> Any:
        results = function(*(v.astype(jnp.float64) for v in (x, *others)), **attrs)
        several = tuple(
            r.astype(x.dtype) if jnp.issubdtype(r.dtype, jnp.floating) else r
            for r in (results if isinstance(results, tuple) else (results,))
        )
        return several if isinstance(results, tuple) else several[0]

    return meaning


def _solve(a: Any, b: Any) -> Any:
    solution = jnp.linalg.solve(a, b)
    bad = ~jnp.isfinite(solution).all(axis=(-2, -1), keepdims=True)
    return jnp.where(bad, jnp.nan, solution)


def _lu(x: Any, *, pivot: bool) -> Any:
    if not pivot:
        return _lu_in_order(x)
    packed, pivots, _ = lax.linalg.lu(x)
    return packed, pivots.astype(jnp.int64)


def _lu_in_order(x: Any) -> Any:
    """The rows as they come. A column of zeros stays as it is."""
    rows, columns = jnp.arange(x.shape[-2]), jnp.arange(x.shape[-1])
    short = min(x.shape[-2:])

    def step(k: Any, x: Any) -> Any:
        top = x[..., k, k]
        factors = jnp.where(rows > k, x[..., :, k] / jnp.where(top == 0, 1, top)[..., None], 0)
        row = jnp.where(columns > k, x[..., k, :], 0)
        kept = jnp.where(rows > k, factors, x[..., :, k])
        return (x - factors[..., None] * row[..., None, :]).at[..., :, k].set(kept)

    places = jnp.broadcast_to(jnp.arange(short, dtype=jnp.int64), (*x.shape[:-2], short))
    return lax.fori_loop(0, short, step, x), places


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
