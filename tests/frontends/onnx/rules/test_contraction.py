"""Products: vectors and batches, Gemm of every opset, equations of every form."""

from __future__ import annotations

import numpy as np
import pytest

import dovetail
from dovetail.dtypes import f32, i64
from dovetail.errors import BindError, DovetailError, LoadError, UnsupportedError
from dovetail.frontends.onnx import import_model
from dovetail.ir.type import TensorType
from tests.frontends.onnx.build import Array, assert_like_onnxruntime, by_dovetail, model, node

RNG = np.random.default_rng(4)


def _random(*shape: int) -> Array:
    return RNG.normal(size=shape).astype(np.float32)


@pytest.mark.parametrize(
    ("left", "right"),
    [((4,), (4,)), ((4,), (2, 4, 3)), ((2, 3, 4), (4,)), ((2, 1, 3, 4), (5, 4, 6)), ((3, 4), (4, 5))],
)
def test_matrices_vectors_and_batches(left: tuple[int, ...], right: tuple[int, ...]) -> None:
    made = model(["MatMul x y -> z"], {"x": f32[left], "y": f32[right]}, ["z"])
    assert_like_onnxruntime(made, {"x": _random(*left), "y": _random(*right)})


def test_one_compile_serves_every_batch() -> None:
    made = model(["MatMul x y -> z"], {"x": f32["b", "s", 4], "y": f32[4, 5]}, ["z"])
    y = _random(4, 5)
    assert_like_onnxruntime(made, {"x": _random(2, 3, 4), "y": y}, {"x": _random(1, 7, 4), "y": y})


@pytest.mark.parametrize("bias", [(5,), (1, 5), (3, 1), (3, 5), ()])
@pytest.mark.parametrize("turned", [0, 1])
def test_gemm(bias: tuple[int, ...], turned: int) -> None:
    gemm = node("Gemm a b c -> y", alpha=0.5, beta=2.0, transA=turned, transB=1 - turned)
    a, b = ((4, 3), (4, 5)) if turned else ((3, 4), (5, 4))
    made = model([gemm], {"a": f32[a], "b": f32[b], "c": f32[bias]}, ["y"], opset=13)
    assert_like_onnxruntime(made, {"a": _random(*a), "b": _random(*b), "c": _random(*bias)})


def test_gemm_before_opset_7_says_that_it_stretches() -> None:
    gemm = node("Gemm a b c -> y", broadcast=1)
    made = model([gemm], {"a": f32["m", 4], "b": f32[4, 5], "c": f32[5]}, ["y"], opset=6)
    feed = {"a": _random(3, 4), "b": _random(4, 5), "c": _random(5)}
    (got,) = by_dovetail(made, feed)
    np.testing.assert_allclose(got["y"], feed["a"] @ feed["b"] + feed["c"], rtol=1e-5, atol=1e-5)


def test_gemm_of_whole_numbers_has_whole_factors() -> None:
    inputs = {"a": i64[2, 3], "b": i64[3, 2]}
    feed = {"a": np.arange(6).reshape(2, 3), "b": np.arange(6).reshape(3, 2)}
    (got,) = by_dovetail(model([node("Gemm a b -> y", alpha=3.0)], inputs, ["y"]), feed)
    np.testing.assert_array_equal(got["y"], 3 * feed["a"] @ feed["b"])
    with pytest.raises(UnsupportedError, match=r"a factor of 0\.5"):
        import_model(model([node("Gemm a b -> y", alpha=0.5)], inputs, ["y"]))


def test_gemm_with_a_row_is_linear() -> None:
    inputs = {"a": f32["m", 16]}
    weights = {"w": _random(32, 16), "c": _random(1, 32)}
    made = model([node("Gemm a w c -> h", transB=1), "Relu h -> y"], inputs, ["y"], initializers=weights)
    assert dovetail.explain(import_model(made)).count("linear") == 1


EQUATIONS = [
    ("ij->ji", [(2, 3)]),
    ("ii", [(3, 3)]),
    ("ii->i", [(3, 3)]),
    ("...ii->...i", [(2, 3, 3)]),
    ("iji->j", [(3, 2, 3)]),
    ("iii->i", [(3, 3, 3)]),
    ("ij->", [(2, 3)]),
    ("i,j", [(2,), (3,)]),
    ("ij,jk", [(2, 3), (3, 4)]),
    ("ij,jk->ki", [(2, 3), (3, 4)]),
    ("ij,ij->ij", [(2, 3), (2, 3)]),
    ("bhqd,bhkd->bhqk", [(2, 3, 4, 5), (2, 3, 6, 5)]),
    ("bqhd,bkhd->bhqk", [(2, 4, 3, 5), (2, 6, 3, 5)]),
    ("bsd,dhe->bshe", [(2, 3, 4), (4, 2, 5)]),
    ("bshe,hed->bsd", [(2, 3, 2, 5), (2, 5, 4)]),
    ("...ij,...jk->...ik", [(2, 1, 3, 4), (5, 4, 2)]),
    ("i...,i...", [(3, 2), (3, 2)]),
    ("b...,bc->c...", [(2, 3, 4), (2, 5)]),
    ("ab,bc,cd->ad", [(2, 3), (3, 4), (4, 5)]),
    ("ab,bc,ca->", [(2, 3), (3, 4), (4, 2)]),
    ("abc,ad,bd,cd->d", [(2, 3, 4), (2, 5), (3, 5), (4, 5)]),
    ("i,ij,j->", [(2,), (2, 3), (3,)]),
    ("Ab, bA -> A", [(2, 3), (3, 2)]),
    (",i->i", [(), (3,)]),
]


@pytest.mark.parametrize(("equation", "shapes"), EQUATIONS, ids=[e for e, _ in EQUATIONS])
def test_einsum_is_what_numpy_says(equation: str, shapes: list[tuple[int, ...]]) -> None:
    arrays = {f"x{i}": _random(*shape) for i, shape in enumerate(shapes)}
    made = model(
        [node(f"Einsum {' '.join(arrays)} -> y", equation=equation)],
        {name: f32[array.shape] for name, array in arrays.items()},
        ["y"],
    )
    (got,) = by_dovetail(made, arrays)
    expected = np.einsum(equation.replace(" ", ""), *arrays.values())
    np.testing.assert_allclose(got["y"], expected, rtol=1e-4, atol=1e-5)


def test_einsum_of_symbolic_sizes() -> None:
    inputs: dict[str, TensorType] = {"q": f32["b", "s", 2, 4], "k": f32["b", "t", 2, 4]}
    made = model([node("Einsum q k -> y", equation="bshd,bthd->bhst")], inputs, ["y"], opset=12)
    feeds = [{"q": _random(b, s, 2, 4), "k": _random(b, t, 2, 4)} for b, s, t in ((1, 3, 5), (2, 6, 2))]
    assert_like_onnxruntime(made, *feeds)


@pytest.mark.slow
def test_a_diagonal_is_of_a_square() -> None:
    made = model([node("Einsum x -> y", equation="ii->i")], {"x": f32["n", "m"]}, ["y"])
    (got,) = by_dovetail(made, {"x": np.arange(9, dtype=np.float32).reshape(3, 3)})
    assert got["y"].tolist() == [0.0, 4.0, 8.0]
    with pytest.raises(BindError):
        by_dovetail(made, {"x": np.zeros((2, 3), np.float32)})


@pytest.mark.parametrize("equation", ["ij,jk->ik", "ij", "i->ii", "i->j", "i1->i", "...i->i", "......i->i"])
def test_equations_that_say_nothing_are_refused(equation: str) -> None:
    rank = 3 if "..." in equation or equation == "ij" else 1
    with pytest.raises((LoadError, DovetailError)):
        import_model(
            model([node("Einsum x -> y", equation=equation)], {"x": f32[tuple(2 for _ in range(rank))]}, ["y"])
        )
