"""Functions of JAX as graphs: they compute what JAX computes, names are kept, and what is not imported is named."""
# pyright: basic
# Arrays of JAX have no types here.

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

os.environ.setdefault("JAX_PLATFORMS", "cpu")
jax: Any = pytest.importorskip("jax")

from dovetail import Program, compile, load, save  # noqa: E402  # JAX may not be there
from dovetail.errors import BindError, DovetailError, LoadError, UnsupportedError  # noqa: E402
from dovetail.frontends.jax.calling import placement_in  # noqa: E402
from dovetail.mesh import explain_placement  # noqa: E402
from tests.frontends.jax.functions import CASES, drawn  # noqa: E402
from tests.frontends.jax.judge import verdict  # noqa: E402

FEW = """
    argmax at_set casts cholesky cholesky_upper conv_transpose cumsum dynamic_update eigh erf fft gradient ifftn
    index_two irfft lu max_pool_gradient max_pool_gradient_same min_pool_gradient nn_attention pad_inside rfft2 scan
    solve sort_pairs switch triangular while
""".split()  # noqa: SIM905
REFUSED = {
    "lexsort": "sort: by several keys",
    "qr": "custom_call @lapack_sgeqrf_ffi",
    "svd": "custom_call @lapack_sgesdd_ffi",
}


@pytest.mark.parametrize("name", FEW)
def test_it_computes_what_jax_does(name: str) -> None:
    assert verdict(CASES[name]) == "agrees"


def test_a_drawn_function_computes_what_jax_does() -> None:
    assert verdict(drawn(1000)) == "agrees"


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_imported_is_named(name: str) -> None:
    assert REFUSED[name] in verdict(CASES[name])


def network(params: Any, x: Any) -> Any:
    with jax.named_scope("block"):
        h = jax.nn.relu(x @ params["layers"][0]["w"] + params["layers"][0]["b"])
    return {"logits": h @ params["layers"][1]["w"]}


def given() -> tuple[Any, Any]:
    rng = np.random.default_rng(0)
    first, bias, second = (rng.standard_normal(s).astype(np.float32) for s in ((6, 8), (8,), (8, 4)))
    return {"layers": [{"w": first, "b": bias}, {"w": second}]}, rng.standard_normal((2, 6)).astype(np.float32)


def test_names_and_places_are_those_of_the_function(tmp_path: Path) -> None:
    params, x = given()
    lowered = jax.jit(network).lower(params, x)
    program: Program = compile(lowered)
    inputs = {
        "params.layers.0.b": params["layers"][0]["b"],
        "params.layers.0.w": params["layers"][0]["w"],
        "params.layers.1.w": params["layers"][1]["w"],
        "x": x,
    }
    assert [str(v.attrs["name"]) for v in program.graph.inputs] == list(inputs)
    found = program.run(inputs)
    assert list(found) == ["result.logits"]
    np.testing.assert_allclose(found["result.logits"], network(params, x)["logits"], rtol=1e-5, atol=1e-6)
    assert any("block" in node.where for kernel in program.report.kernels for node in kernel.nodes)
    # The same function, exported and as text.
    exported = pytest.importorskip("jax.export").export(jax.jit(network))(params, x)
    (tmp_path / "network.mlir").write_text(exported.mlir_module(), encoding="utf-8")
    others: list[Program] = [compile(e, target="reference") for e in (exported, tmp_path / "network.mlir")]
    for other in others:
        np.testing.assert_allclose(other.run(inputs)["result.logits"], found["result.logits"], rtol=1e-5)
    # Placements name the arguments, and collectives the scopes.
    place = {"params.layers.0.w": "- tp", "params.layers.1.w": "tp"}
    (one,) = explain_placement(load(tmp_path / "network.mlir"), mesh={"tp": 2}, place=place).collectives
    assert one.kind == "all-reduce" and 'params.layers.*.w is placed "tp"' in one.why


def test_sizes_that_are_open_are_symbols(tmp_path: Path) -> None:
    jnp, export = jax.numpy, pytest.importorskip("jax.export")
    rows, more = export.symbolic_shape("n, m")
    params, x = given()

    def pooled(params: Any, x: Any) -> Any:
        y = jax.nn.softmax(network(params, x)["logits"], -1)
        doubled = jnp.concatenate([y, y]).reshape(2, -1, 4).mean(0)
        return doubled, jnp.where(jnp.arange(x.shape[0])[:, None] < 2, y, 0.0), y.sum(0) / x.shape[0]

    exported = export.export(jax.jit(pooled))(params, jax.ShapeDtypeStruct((rows, 6), np.float32))
    program = compile(exported)
    assert program.graph.symbols == ("n",)
    for count in (1, 3, 5):
        x = np.random.default_rng(count).standard_normal((count, 6)).astype(np.float32)
        for one, other in zip(program(params, x), jax.jit(pooled)(params, x), strict=True):
            np.testing.assert_allclose(one, np.asarray(other), rtol=1e-5, atol=1e-6)

    def image(x: Any, w: Any) -> Any:
        y = jax.lax.conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))
        return jax.lax.reduce_window(y, -jnp.inf, jax.lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")

    w = np.random.default_rng(1).standard_normal((3, 3, 2, 4)).astype(np.float32)
    convolved = compile(export.export(jax.jit(image))(jax.ShapeDtypeStruct((rows, 6, 6, 2), np.float32), w))
    pictures = np.random.default_rng(2).standard_normal((3, 6, 6, 2)).astype(np.float32)
    np.testing.assert_allclose(convolved(pictures, w), jax.jit(image)(pictures, w), rtol=1e-4, atol=1e-5)
    # Sizes that depend on others, and those of text, which has no names for them.
    both = export.export(jax.jit(lambda a, b: a @ b))(
        jax.ShapeDtypeStruct((2 * rows, more), np.float32), jax.ShapeDtypeStruct((more, rows), np.float32)
    )
    a, b = np.ones((6, 2), np.float32), np.ones((2, 3), np.float32)
    np.testing.assert_array_equal(compile(both)(a, b), a @ b)
    with pytest.raises(DovetailError, match="a"):
        compile(both)(a, np.ones((2, 4), np.float32))
    (tmp_path / "open.mlir").write_text(both.mlir_module(), encoding="utf-8")
    with pytest.raises(UnsupportedError, match="sizes that are not known"):
        load(tmp_path / "open.mlir")


def test_text_must_be_stablehlo(tmp_path: Path) -> None:
    (tmp_path / "broken.mlir").write_text("module {", encoding="utf-8")
    with pytest.raises(LoadError, match="no StableHLO"):
        load(tmp_path / "broken.mlir")


def shown(function: Any, *arguments: Any) -> tuple[Program, float]:
    """A function compiled, and how far its result is from that of JAX."""
    program = compile(jax.jit(function).lower(*arguments))
    return program, float(np.abs(program(*arguments) - np.asarray(jax.jit(function)(*arguments))).max())


@pytest.mark.parametrize("name", ["softmax", "log_softmax", "attention", "masked", "biased", "einsum"])
def test_what_jax_writes_with_a_bound_of_minus_infinity_fuses(name: str) -> None:
    jnp, attend = jax.numpy, jax.nn.dot_product_attention
    rng = np.random.default_rng(0)
    q, k, v = (rng.standard_normal((2, 16, 4, 8)).astype(np.float32) for _ in range(3))
    mask = np.broadcast_to(np.tril(np.ones((16, 16), bool)), (2, 1, 16, 16)).copy()
    bias = rng.standard_normal((1, 4, 16, 16)).astype(np.float32)

    def spelled(q: Any, k: Any, v: Any) -> Any:
        scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) / np.sqrt(8.0).astype(np.float32)
        return jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores, -1), v)

    function, arguments, rule = {
        "softmax": (lambda x: jax.nn.softmax(x, -1), (q,), "softmax"),
        "log_softmax": (lambda x: jax.nn.log_softmax(x, -1), (q,), "log_softmax"),
        "attention": (lambda q, k, v: attend(q, k, v), (q, k, v), "attention"),
        "masked": (lambda q, k, v, m: attend(q, k, v, mask=m), (q, k, v, mask), "attention"),
        "biased": (lambda q, k, v, b: attend(q, k, v, bias=b), (q, k, v, bias), "attention"),
        "einsum": (spelled, (q, k, v), "attention"),
    }[name]
    program, deviation = shown(function, *arguments)
    assert len(program.plan.steps) == 1 and program.report.count(rule) == 1 and deviation < 2e-6


def test_a_program_is_called_as_the_function_is() -> None:
    params, x = given()
    program = compile(jax.jit(network).lower(params, x))
    found = program(params, x)
    assert list(found) == ["logits"]
    np.testing.assert_allclose(found["logits"], network(params, x)["logits"], rtol=1e-5, atol=1e-6)

    def scaled(params: Any, x: Any, scale: Any = 2.0) -> Any:
        return (x * scale, [x.sum()])  # the parameters are not read: JAX leaves them out of the module

    lowered = jax.jit(scaled).lower(params, x, scale=3.0)
    (y, (total,)) = compile(lowered)(params, jax.numpy.asarray(x), scale=3.0)
    np.testing.assert_allclose(y, x * 3)
    np.testing.assert_allclose(total, x.sum(), rtol=1e-5)
    with pytest.raises(BindError, match="arguments of the structure"):
        program(x, params)
    by_position = compile(load(lowered))  # a graph knows no structures: its inputs are taken in their order
    np.testing.assert_allclose(next(iter(by_position(x, np.array(3.0, np.float32)).values())), x * 3)


def test_what_takes_graphs_takes_lowered_functions(tmp_path: Path) -> None:
    params, x = given()
    lowered = jax.jit(network).lower(params, x)
    save(lowered, tmp_path / "network.dvt")
    again: Program = compile(tmp_path / "network.dvt")
    assert [str(v.attrs["name"]) for v in again.graph.inputs] == [str(v.attrs["name"]) for v in load(lowered).inputs]
    found = explain_placement(lowered, mesh={"tp": 2}, place={"params.layers.0.w": "- tp", "params.layers.1.w": "tp"})
    assert [c.kind for c in found.collectives] == ["all-reduce"]


def test_shardings_of_a_function_are_placements() -> None:
    sharding = pytest.importorskip("jax.sharding")
    mesh = sharding.Mesh(np.array(jax.devices()[:1]), ("tp",))
    spec = sharding.PartitionSpec
    by_columns, by_rows = (sharding.NamedSharding(mesh, s) for s in (spec(None, "tp"), spec("tp", None)))
    x, first, second = np.ones((2, 4), np.float32), np.ones((4, 8), np.float32), np.ones((8, 4), np.float32)
    lowered = jax.jit(lambda a, b, x: (x @ a) @ b, in_shardings=(by_columns, by_rows, None)).lower(first, second, x)
    assert placement_in(lowered) == ({"tp": 1}, {"a": "- tp", "b": "tp"})
    (one,) = explain_placement(lowered, mesh={"tp": 2}).collectives
    assert one.kind == "all-reduce"
    np.testing.assert_allclose(compile(lowered, target="xla")(first, second, x), x @ first @ second)
