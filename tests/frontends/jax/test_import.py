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

from dovetail import Program, compile, load  # noqa: E402
from dovetail.errors import LoadError, UnsupportedError  # noqa: E402
from dovetail.mesh import explain_placement  # noqa: E402  # JAX may not be there
from tests.frontends.jax.functions import CASES, drawn  # noqa: E402
from tests.frontends.jax.judge import verdict  # noqa: E402

FEW = """
    argmax at_set casts conv_transpose cumsum dynamic_update erf gradient index_two nn_attention pad_inside scan
    sort_pairs switch while
""".split()  # noqa: SIM905
REFUSED = {
    "cholesky": "custom_call @lapack_spotrf_ffi",
    "fft": "stablehlo.fft",
    "lexsort": "sort: by several keys",
    "max_pool_gradient": "stablehlo.select_and_scatter",
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


def test_sizes_must_be_numbers_and_text_must_be_stablehlo(tmp_path: Path) -> None:
    export: Any = pytest.importorskip("jax.export")
    (size,) = export.symbolic_shape("n")
    exported = export.export(jax.jit(jax.numpy.negative))(jax.ShapeDtypeStruct((size,), np.float32))
    with pytest.raises(UnsupportedError, match="sizes that are not known"):
        compile(exported)
    (tmp_path / "broken.mlir").write_text("module {", encoding="utf-8")
    with pytest.raises(LoadError, match="no StableHLO"):
        load(tmp_path / "broken.mlir")
