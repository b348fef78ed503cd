"""Systems and decompositions against what defines them: products that give the matrix back, and orthogonality."""

from __future__ import annotations

import numpy as np
import pytest

from dovetail import ops
from dovetail.errors import TypeRuleError
from dovetail.ir import leaf
from dovetail.ir.dtype import f32, i64
from tests.ops.meaning import Array, meaning, meanings

SHAPES = [(3, 3), (2, 4, 4), (2, 0, 3, 3), (2, 5, 3), (3, 5), (0, 0), (1, 1)]
SQUARE = [s for s in SHAPES if s[-1] == s[-2]]


def drawn(*shape: int) -> Array:
    return np.random.default_rng(sum(shape)).normal(size=shape)


def turned(x: Array) -> Array:
    return np.swapaxes(x, -1, -2)


@pytest.mark.parametrize("shape", SQUARE, ids=str)
def test_solve(shape: tuple[int, ...]) -> None:
    a, b = drawn(*shape) + 3 * np.eye(shape[-1]), drawn(*shape[:-1], 2)
    np.testing.assert_allclose(a @ meaning(ops.solve, a, b), b, atol=1e-12)


def test_a_singular_matrix_gives_nan_and_leaves_the_others_alone() -> None:
    a = np.stack([np.eye(2), np.ones((2, 2))])
    found = meaning(ops.solve, a, np.ones((2, 2, 1)))
    assert found[0].tolist() == [[1.0], [1.0]] and np.isnan(found[1]).all()
    found = meaning(ops.cholesky, np.stack([np.eye(2) * 4.0, -np.eye(2)]))
    assert found[0].tolist() == [[2.0, 0.0], [0.0, 2.0]] and np.isnan(found[1]).all()


@pytest.mark.parametrize("shape", SQUARE, ids=str)
def test_cholesky_reads_the_lower_triangle(shape: tuple[int, ...]) -> None:
    half = drawn(*shape)
    x = half @ turned(half) + np.eye(shape[-1])
    found = meaning(ops.cholesky, np.tril(x) + np.triu(drawn(*shape), 1))
    np.testing.assert_allclose(found @ turned(found), x, atol=1e-12)
    assert not np.triu(found, 1).any()


@pytest.mark.parametrize("pivot", [True, False])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_lu(shape: tuple[int, ...], pivot: bool) -> None:
    x = drawn(*shape) + (0.0 if pivot else 4.0) * np.eye(shape[-2], shape[-1])
    packed, places = meanings(ops.lu, x, pivot=pivot)
    short = min(shape[-2:])
    low = np.tril(packed, -1)[..., :short] + np.eye(shape[-2], short)
    product = low @ np.triu(packed)[..., :short, :]
    for at in np.ndindex(*shape[:-2]):
        rows = product[at]
        for k in reversed(range(short)):  # the places change back in the other order
            rows[[k, places[at][k]]] = rows[[places[at][k], k]]
        np.testing.assert_allclose(rows, x[at], atol=1e-12)
    assert pivot or (places == np.arange(short)).all()
    assert not pivot or (np.abs(low) <= 1.0 + 1e-12).all()


def test_lu_of_a_column_of_zeros_stays_finite() -> None:
    packed, _ = meanings(ops.lu, np.array([[0.0, 1.0], [0.0, 2.0]]))
    assert packed.tolist() == [[0.0, 1.0], [0.0, 2.0]]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_reflectors(shape: tuple[int, ...]) -> None:
    x = drawn(*shape)
    packed, factors = meanings(ops.reflectors, x)
    rows, columns = shape[-2:]
    for at in np.ndindex(*shape[:-2]):
        q = np.eye(rows)
        for k in range(min(rows, columns)):
            v = np.concatenate([np.zeros(k), [1.0], packed[at][k + 1 :, k]])
            q = q @ (np.eye(rows) - factors[at][k] * np.outer(v, v))
        np.testing.assert_allclose(q @ np.triu(packed[at]), x[at], atol=1e-12)
        np.testing.assert_allclose(q @ q.T, np.eye(rows), atol=1e-12)


@pytest.mark.parametrize("full", [True, False])
@pytest.mark.parametrize("shape", [s for s in SHAPES if s != (0, 0)], ids=str)
def test_svd(shape: tuple[int, ...], full: bool) -> None:
    x = drawn(*shape)
    u, s, v = meanings(ops.svd, x, full=full)
    short = min(shape[-2:])
    np.testing.assert_allclose(u[..., :short] * s[..., None, :] @ v[..., :short, :], x, atol=1e-12)
    np.testing.assert_allclose(turned(u) @ u - np.eye(u.shape[-1]), 0.0, atol=1e-12)
    assert (np.diff(s, axis=-1) <= 0).all() and (s >= 0).all()


@pytest.mark.parametrize("shape", SQUARE, ids=str)
def test_eigh_reads_the_lower_triangle(shape: tuple[int, ...]) -> None:
    x = drawn(*shape)
    values, vectors = meanings(ops.eigh, x)
    symmetric = np.tril(x) + turned(np.tril(x, -1))
    np.testing.assert_allclose(symmetric @ vectors, vectors * values[..., None, :], atol=1e-12)
    assert (np.diff(values, axis=-1) >= 0).all()


@pytest.mark.parametrize("shape", SQUARE, ids=str)
def test_eig(shape: tuple[int, ...]) -> None:
    x = drawn(*shape)
    values, vectors = (part[..., 0] + 1j * part[..., 1] for part in meanings(ops.eig, x))
    np.testing.assert_allclose(x @ vectors, vectors * values[..., None, :], atol=1e-12)


def test_they_take_matrices_of_floats_that_fit() -> None:
    with pytest.raises(TypeRuleError, match="square"):
        ops.cholesky(leaf.input("x", f32[3, 4]))
    with pytest.raises(TypeRuleError, match="matrices"):
        ops.lu(leaf.input("x", f32[3]))
    with pytest.raises(TypeRuleError, match="i64"):
        ops.svd(leaf.input("x", i64[3, 3]))
    with pytest.raises(TypeRuleError, match="rank"):
        ops.solve(leaf.input("a", f32[2, 3, 3]), leaf.input("b", f32[3, 1]))
