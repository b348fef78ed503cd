"""decoder_layer: a pre-norm layer of few rows as one node, alone and in a row of layers."""

from __future__ import annotations

import pytest

from dovetail import Value, ops
from dovetail.dtypes import f32
from dovetail.ir import leaf
from dovetail.ir.leaf import input, param
from dovetail.library.decoder_layer import decoder_layer
from dovetail.targets.cpu.claims import CLAIMS as CPU
from tests.library import judge
from tests.library.attending import (
    INF,
    Array,
    angles,
    attend,
    causal,
    feeds,
    found,
    heads_of,
    joined_heads,
    near,
    recognised,
    rotate,
    run,
)

B, S, H, KV, D, INNER = 2, 5, 4, 2, 8, 128
E = H * D
EPS = 1e-5
COS, SIN = input("cos", f32[S, D]), input("sin", f32[S, D])


def split(x: Value, heads: int) -> Value:
    return ops.permute(ops.split(x, axis=-1, parts=heads), order=(-2, -3, -1))


def normed(x: Value, name: str) -> Value:
    root = ops.reciprocal(ops.sqrt(ops.reduce_mean(x * x, axes=(-1,)) + EPS))
    return param(name, f32[E]) * (x * root)


def turned(y: Value, cos: Value, sin: Value) -> Value:
    first, second = (ops.part(y, axis=-1, index=i, parts=2) for i in (0, 1))
    return y * cos + ops.concat(-second, first, axis=-1) * sin


def widened(y: Value) -> Value:
    return ops.merge(ops.expand(ops.unsqueeze(y, axes=(-3,)), axis=-3, size=H // KV), axis=-3)


def layer(x: Value, name: str, cos: Value = COS, sin: Value = SIN) -> Value:
    """A Llama layer in primitives."""
    rows = cos.shape[0]

    def weight(part: str, inner: int, outer: int) -> Value:
        return param(f"{name}{part}", f32[inner, outer])

    n = normed(x, f"{name}gain1")
    q, k, v = (split(n @ weight(p, E, h * D), h) for p, h in (("q", H), ("k", KV), ("v", KV)))
    scores = (turned(q, cos, sin) @ ops.permute(widened(turned(k, cos, sin)), order=(-1, -2))) * 0.25
    seen = ops.less_equal(ops.iota(size=rows), ops.unsqueeze(ops.iota(size=rows), axes=(-1,)))
    scores = scores + ops.where(seen, leaf.scalar(0.0, f32), leaf.scalar(-INF, f32))
    raised = ops.exp(scores - ops.reduce_max(scores, axes=(-1,)))
    attended = (raised / ops.reduce_sum(raised, axes=(-1,))) @ widened(v)
    middle = x + ops.merge(ops.permute(attended, order=(-2, -3, -1)), axis=-1) @ weight("o", E, E)
    n = normed(middle, f"{name}gain2")
    gate = n @ weight("gate", E, INNER)
    hidden = (gate * ops.sigmoid(gate)) * (n @ weight("up", E, INNER))
    return middle + hidden @ weight("down", INNER, E)


def expected(x: Array, arrays: dict[str, Array], name: str) -> Array:
    def w(part: str) -> Array:
        return arrays[name + part]

    cos, sin = arrays["cos"], arrays["sin"]
    n = judge.rms_norm(x, EPS) * w("gain1")
    q, k, v = heads_of(n @ w("q"), H), heads_of(n @ w("k"), KV), heads_of(n @ w("v"), KV)
    attended = attend(rotate(q, cos, sin), rotate(k, cos, sin), v, scale=0.25, keep=causal(S, S))
    middle = x + joined_heads(attended) @ w("o")
    n = judge.rms_norm(middle, EPS) * w("gain2")
    return middle + (judge.silu(n @ w("gate")) * (n @ w("up"))) @ w("down")


X = input("x", f32[B, S, E])


def test_a_layer_collapses_to_one_node() -> None:
    spelled = layer(X, "a.")
    value = found(spelled, "decoder_layer", machine=CPU.machine)
    call = decoder_layer.of(value)
    assert (call.heads, call.kv_heads, call.groups, call.causal, call.ends) == (H, KV, 2, True, "sum")
    graph = recognised(spelled, machine=CPU.machine).graph
    assert [v for v in graph.values if v.operands] == [value]
    cos, sin = angles(S, D)
    arrays = feeds(graph, cos=cos, sin=sin)
    near(run(graph, arrays)["y"], expected(arrays["x"], arrays, "a."))


def test_layers_in_a_row_hand_on_what_they_have_normed() -> None:
    spelled = normed(layer(layer(layer(X, "a."), "b."), "c."), "gain")
    graph = recognised(spelled, machine=CPU.machine).graph
    layers = [decoder_layer.of(v) for v in graph.values if v.op is decoder_layer]
    assert [c.ends for c in layers] == ["norm_and_sum", "norm_and_sum", "norm"]
    assert [c.normed is None for c in layers] == [True, False, False]
    assert {v.op.name for v in graph.values if v.operands} == {"decoder_layer", "item"}
    cos, sin = angles(S, D)
    arrays = feeds(graph, cos=cos, sin=sin)
    x = arrays["x"]
    for name in ("a.", "b.", "c."):
        x = expected(x, arrays, name)
    near(run(graph, arrays)["y"], judge.rms_norm(x, EPS) * arrays["gain"])


@pytest.mark.parametrize(("rows", "layers"), [(64, 1), (512, 0)])
def test_many_rows_stay_apart_by_cost(rows: int, layers: int) -> None:
    angles = input("cos", f32[rows, D]), input("sin", f32[rows, D])
    graph = recognised(layer(input("x", f32[1, rows, E]), "a.", *angles), machine=CPU.machine).graph
    assert graph.count(decoder_layer) == layers
