"""Ops that a user declared: a kernel of their body, or its ops; never a step of NumPy where those have kernels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pytest

import dovetail
from dovetail import Builder, Graph, Value, fused_op, ops
from dovetail.declare.fused import FusedOp
from dovetail.dtypes import f32
from dovetail.errors import GateError, UnsupportedError
from dovetail.ir.dim import evaluate
from dovetail.ir.literal import Array
from dovetail.passes.legalize import spell_out

ROWS, WIDTH, COLUMNS = 48, 64, 32


@fused_op(shapes="x[*, k] w[k, n]")
def silu_product(x: Value, w: Value) -> Value:
    """Elementwise work before the product."""
    return (x * ops.sigmoid(x)) @ w


@fused_op(shapes="x[*, k] shift[k] w[k, n]")
def shifted_product(x: Value, shift: Value, w: Value) -> Value:
    """Another operand before the product."""
    return (x + shift) @ w


@fused_op(shapes="x[r, k] a[k, n] b[k, n]")
def factored(x: Value, a: Value, b: Value) -> Value:
    """The sum of two products as one."""
    return x @ (a + b)


@factored.spelling
def distributed(x: Value, a: Value, b: Value) -> Value:
    """As it is often written."""
    return x @ a + x @ b


@fused_op(shapes="x[*, k] w[k, n]")
def shrunk_product(x: Value, w: Value) -> Value:
    """Elementwise work after the product, which a kernel computes."""
    y = x @ w
    return y * ops.rsqrt(y * y + 1.0)


@fused_op(shapes="x[*, k] w[k, k]")
def two_products(x: Value, w: Value) -> Value:
    """A product of a product."""
    return ops.tanh(x @ w) @ w


def graph_of(*parts: str, declared: FusedOp[...] | None = None) -> Graph:
    """A model that writes the body of an op out, or has the op itself."""
    builder = Builder("own")
    x = builder.input("x", f32[ROWS, WIDTH])
    w = [builder.param(name, f32[WIDTH, WIDTH if declared is two_products else COLUMNS]) for name in parts]
    shift = [builder.input("shift", f32[WIDTH])] if declared is shifted_product else []
    assert declared is not None
    builder.output("y", declared(x, *shift, *w))
    return builder.graph()


def written_out(graph: Graph) -> Graph:
    return spell_out(graph, {v.op.name for v in graph.values})


def feeds(graph: Graph) -> tuple[dict[str, Array], dict[str, Array]]:
    rng = np.random.default_rng(0)

    def drawn(values: Sequence[Value]) -> dict[str, Array]:
        shapes = {str(v.attrs["name"]): [evaluate(size, {}) for size in v.shape] for v in values}
        return {name: (rng.standard_normal(shape) * 0.2).astype(np.float32) for name, shape in shapes.items()}

    return drawn(graph.parameters), drawn(graph.inputs)


CASES: Mapping[str, tuple[FusedOp[...], tuple[str, ...]]] = {
    "silu_product": (silu_product, ("w",)),
    "shifted_product": (shifted_product, ("w",)),
    "factored": (factored, ("a", "b")),
    "shrunk_product": (shrunk_product, ("w",)),
    "two_products": (two_products, ("w",)),
}


@pytest.mark.parametrize("engine", ["egraph", "greedy"])
@pytest.mark.parametrize("written", [False, True], ids=["declared", "written out"])
@pytest.mark.parametrize("name", CASES)
def test_a_declared_op_never_runs_on_the_host(name: str, written: bool, engine: str) -> None:
    op, weights = CASES[name]
    graph = graph_of(*weights, declared=op)
    params, inputs = feeds(graph)
    arguments = {**params, **inputs}
    wide = {key: array.astype(np.float64) for key, array in arguments.items()}
    expected = reference(name, wide)
    program = dovetail.compile(written_out(graph) if written else graph, ops=[op], engine=engine, params=params)
    assert not [kernel.op for kernel in program.report.kernels if kernel.on_host]
    np.testing.assert_allclose(program.run(inputs)["y"], expected, rtol=2e-5, atol=2e-5)
    plain = dovetail.compile(written_out(graph), engine=engine, params=params)
    assert program.report.predicted_seconds <= plain.report.predicted_seconds * 1.001


def reference(name: str, of: Mapping[str, Array]) -> Array:
    x = of["x"]
    if name == "silu_product":
        return (x / (1 + np.exp(-x))) @ of["w"]
    if name == "shifted_product":
        return (x + of["shift"]) @ of["w"]
    if name == "factored":
        return x @ of["a"] + x @ of["b"]
    if name == "two_products":
        return np.tanh(x @ of["w"]) @ of["w"]
    y = x @ of["w"]
    return y / np.sqrt(y * y + 1)


def test_an_op_with_a_kernel_stays_one_step() -> None:
    graph = graph_of("w", declared=shrunk_product)
    report = dovetail.explain(written_out(graph), ops=[shrunk_product], require=["shrunk_product"])
    assert [kernel.op for kernel in report.kernels] == ["shrunk_product"]


def test_an_op_without_a_kernel_is_told_as_spelled_out() -> None:
    graph = written_out(graph_of("w", declared=silu_product))
    report = dovetail.explain(graph, ops=[silu_product])
    (row,) = [row for row in report.dispatch if row.op == "silu_product"]
    assert row.outcome == "common" and row.count == 1 and "no kernel of the cpu" in row.reason
    assert not report.count("silu_product")
    with pytest.raises(GateError, match="silu_product: no kernel of the cpu computes its body as one"):
        dovetail.compile(graph, ops=[silu_product], require=["silu_product"], cache="off")


def test_its_better_body_is_taken_all_the_same() -> None:
    """One product of the sum in the place of two: the declaration says so, though no kernel computes it whole."""
    graph = written_out(graph_of("a", "b", declared=factored))
    builder = Builder("apart")
    x, a, b = builder.input("x", f32[ROWS, WIDTH]), *(builder.param(k, f32[WIDTH, COLUMNS]) for k in "ab")
    builder.output("y", x @ a + x @ b)
    for one in (graph, builder.graph()):
        report = dovetail.explain(one, ops=[factored], without=["shared_input_matmul"])
        assert [k.op for k in report.kernels if k.phase == "run"].count("matmul") == 1, report.summary


def test_forced_it_is_refused_with_the_reason() -> None:
    graph = graph_of("w", declared=silu_product)
    with pytest.raises(UnsupportedError, match="no kernel of the cpu computes its body as one"):
        dovetail.explain(graph, ops=[silu_product], dispatch={"silu_product": "force_native"})


def test_an_op_that_the_target_does_not_know_is_spelled_out_before_fusing() -> None:
    """A norm and an activation inside a declared op are those of the library on every target."""

    @fused_op(shapes="x[*, k] gain[k] w[k, n] b[n]")
    def head(x: Value, gain: Value, w: Value, b: Value) -> Value:
        """A norm, a product and an activation."""
        y = x * ops.rsqrt(ops.reduce_mean(x * x, axes=(-1,)) + 1e-6) * gain
        return ops.relu(y @ w + b)

    builder = Builder("head")
    x, gain = builder.input("x", f32[ROWS, WIDTH]), builder.param("gain", f32[WIDTH])
    w, b = builder.param("w", f32[WIDTH, COLUMNS]), builder.param("b", f32[COLUMNS])
    builder.output("y", head(x, gain, w, b))
    for target in ("cpu", "cuda"):
        report = dovetail.explain(builder.graph(), target=target)
        assert {fused.rule for fused in report.fused} >= {"rms_norm", "linear"}, (target, report.summary)
