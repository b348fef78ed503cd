"""transformer_layer: a post-norm layer of few rows as one node."""

from __future__ import annotations

import numpy as np
import pytest

from dovetail import Value, ops
from dovetail.dtypes import f32
from dovetail.ir.leaf import input, param
from dovetail.library.gelu import gelu
from dovetail.library.transformer_layer import transformer_layer
from dovetail.targets.cpu.claims import CLAIMS as CPU
from tests.library import judge
from tests.library.attending import Array, attend, feeds, found, heads_of, joined_heads, near, recognised, run

B, S, H, D, INNER = 1, 6, 4, 8, 128
E = H * D
X, MASK = input("x", f32[B, S, E]), input("mask", f32[B, 1, 1, S])
EPS = 1e-5


def split(x: Value) -> Value:
    return ops.permute(ops.split(x, axis=-1, parts=H), order=(-2, -3, -1))


def normed(x: Value, name: str, bias: bool) -> Value:
    centred = x - ops.reduce_mean(x, axes=(-1,))
    variance = ops.reduce_mean(centred * centred, axes=(-1,))
    y = centred / ops.sqrt(variance + EPS) * param(f"gain{name}", f32[E])
    return y + param(f"bias{name}", f32[E]) if bias else y


def halves(x: Value, *, joined: bool, bias: bool, input_first: bool = False) -> tuple[Value, Value]:
    """A BERT layer in primitives, up to its middle and to its end."""

    def project(y: Value, name: str, inner: int, outer: int) -> Value:
        z = y @ param(f"w_{name}", f32[inner, outer])
        return z + param(f"b_{name}", f32[outer]) if bias else z

    def added(y: Value, z: Value) -> Value:
        return z + y if input_first else y + z

    if joined:
        y = project(x, "qkv", E, 3 * E)
        q, k, v = (split(ops.part(y, axis=-1, index=i, parts=3)) for i in range(3))
    else:
        q, k, v = (split(project(x, n, E, E)) for n in "qkv")
    scores = (q @ ops.permute(k, order=(-1, -2))) * 0.25 + MASK
    raised = ops.exp(scores - ops.reduce_max(scores, axes=(-1,)))
    attended = (raised / ops.reduce_sum(raised, axes=(-1,))) @ v
    back = project(ops.merge(ops.permute(attended, order=(-2, -3, -1)), axis=-1), "out", E, E)
    middle = normed(added(back, x), "1", bias)
    hidden = gelu(project(middle, "up", E, INNER))
    return middle, normed(added(project(hidden, "down", INNER, E), middle), "2", bias)


def layer(x: Value, *, joined: bool, bias: bool, input_first: bool = False) -> Value:
    return halves(x, joined=joined, bias=bias, input_first=input_first)[1]


def expected(arrays: dict[str, Array], *, joined: bool) -> Array:
    def project(y: Array, name: str) -> Array:
        return y @ arrays[f"w_{name}"] + arrays.get(f"b_{name}", 0.0)

    def norm(y: Array, name: str) -> Array:
        return judge.layer_norm(y, EPS) * arrays[f"gain{name}"] + arrays.get(f"bias{name}", 0.0)

    x = arrays["x"]
    rows = np.split(project(x, "qkv"), 3, axis=-1) if joined else [project(x, n) for n in "qkv"]
    q, k, v = (heads_of(r, H) for r in rows)
    attended = joined_heads(attend(q, k, v, scale=0.25, added=arrays["mask"]))
    middle = norm(project(attended, "out") + x, "1")
    return norm(project(judge.gelu(project(middle, "up")), "down") + middle, "2")


@pytest.mark.parametrize(
    ("joined", "bias", "operands"), [(True, True, 14), (True, False, 8), (False, True, 18), (False, False, 10)]
)
@pytest.mark.parametrize("input_first", (False, True))
def test_a_layer_collapses_to_one_node(joined: bool, bias: bool, operands: int, input_first: bool) -> None:
    spelled = layer(X, joined=joined, bias=bias, input_first=input_first)
    value = found(spelled, "transformer_layer", machine=CPU.machine)
    assert len(value.operands) == operands
    graph = recognised(spelled, machine=CPU.machine).graph
    assert [v for v in graph.values if v.operands] == [value]
    arrays = feeds(graph)
    near(run(graph, arrays)["y"], expected(arrays, joined=joined))


def test_layers_follow_each_other() -> None:
    """Weights are shared between the layers here, which changes nothing but the number of parameters."""
    spelled = layer(layer(layer(X, joined=True, bias=True), joined=True, bias=True), joined=True, bias=True)
    graph = recognised(spelled, machine=CPU.machine).graph
    assert [v.op.name for v in graph.values if v.operands] == ["transformer_layer"] * 3


def test_many_rows_stay_apart_by_cost() -> None:
    large = input("x", f32[B, 512, E])
    assert all(
        v.op is not transformer_layer for v in recognised(_without_mask(large), machine=CPU.machine).graph.values
    )
    small = recognised(_without_mask(X), machine=CPU.machine).graph
    assert small.count(transformer_layer) == 1


@pytest.mark.parametrize(("first", "second"), [(1e-12, 1e-5), (1e-5, 1e-12), (1e-3, 0.5)])
def test_each_norm_has_an_eps_of_its_own(first: float, second: float) -> None:
    value = found(_without_mask(X, first, second), "transformer_layer", machine=CPU.machine)
    call = transformer_layer.of(value)
    assert (call.eps1, call.eps2) == (first, second)


def _without_mask(x: Value, eps1: float = EPS, eps2: float = EPS) -> Value:
    spelled = transformer_layer.body(
        x,
        param("w", f32[E, 3 * E]),
        param("wo", f32[E, E]),
        param("gain1", f32[E]),
        param("up", f32[E, INNER]),
        param("down", f32[INNER, E]),
        param("gain2", f32[E]),
        heads=H,
        eps1=eps1,
        eps2=eps2,
        scale=0.25,
    )
    assert isinstance(spelled, Value)
    return spelled


def test_a_middle_that_is_an_output_too_keeps_its_value() -> None:
    steps = halves(X, joined=True, bias=True)
    graph = recognised(dict(zip(("middle", "y"), steps, strict=True)), machine=CPU.machine).graph
    arrays = feeds(graph)
    got = run(graph, arrays)
    near(got["y"], expected(arrays, joined=True))
    near(got["middle"], run(recognised(steps[0]).graph, arrays)["y"])
    assert not np.allclose(got["middle"], got["y"])
