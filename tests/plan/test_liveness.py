"""Who reads what, and which results may take the memory of an operand."""

from __future__ import annotations

import pytest

from dovetail import Graph, Value, ops
from dovetail.dtypes import f16, f32, i32
from dovetail.ir import leaf
from dovetail.ir.graph import Subgraph
from dovetail.library.conv_bias_act import conv_bias_act
from dovetail.library.linear import linear
from dovetail.library.matmul_add import matmul_add
from dovetail.library.residual_rms_norm import residual_rms_norm
from dovetail.library.silu import silu
from dovetail.ops.region import region
from dovetail.plan.alias import find_aliases
from dovetail.plan.liveness import Measure, make_flow, may_overwrite, results_of
from dovetail.targets.cpu.claims import CLAIMS

RULES = CLAIMS.memory
X = leaf.input("x", f32[4, 6])
H = ops.exp(X)
ROW = ops.reduce_sum(H, axes=(0,))
SQUARE = ops.exp(leaf.input("z", f32[6, 6]))
IMAGE = leaf.input("i", f32[1, 3, 8, 8])
FIRST, SECOND = leaf.argument(0, f32[4, 6]), leaf.argument(1, f32[4, 6])


def pointwise(*results: Value) -> Subgraph:
    return Subgraph((f32[4, 6], f32[4, 6]), results)


@pytest.mark.parametrize(
    ("value", "roots"),
    [
        (ops.tanh(H), [H]),
        (H * H, [H]),
        (silu(H), [H]),
        (H + ops.tanh(X), [H, ops.tanh(X)]),
        (ops.unsqueeze(H, axes=(-3,)) * 2.0, [H]),
        (ops.merge(H, axis=-1) * 2.0, [H]),
        (ops.cast(H, dtype=i32), [H]),
        (ops.where(ops.less(H, X), H, X), [H, X]),
        (region(pointwise(FIRST * SECOND + FIRST), [H, ops.tanh(X)]), [H, ops.tanh(X)]),
        # A view of the operand stands inside the region: it may not be written over, the other one may.
        (region(pointwise(ops.flip(FIRST, axes=(0,)) * SECOND), [H, ops.tanh(X)]), [ops.tanh(X)]),
        (region(pointwise(ops.flip(FIRST * 2.0, axes=(0,)) + SECOND), [H, ops.tanh(X)]), [ops.tanh(X)]),
        (region(pointwise(FIRST + ops.flip(FIRST, axes=(0,)) + SECOND), [H, ops.tanh(X)]), [ops.tanh(X)]),
        (region(pointwise(FIRST + SECOND), [H, ops.flip(H, axes=(0,))]), []),
        (region(pointwise(FIRST + SECOND), [H, X, X, H], lanes=2), []),
        (H + ops.flip(H, axes=(0,)), []),
        (ops.flip(H, axes=(0,)) * 2.0, []),
        (ops.permute(H, order=(-1, -2)) * 2.0, []),
        (ops.slice_(H, axis=0, start=0, stop=2) * 2.0, []),
        (H + ROW, [H]),
        (ROW + ops.slice_(H, axis=0, start=0, stop=1), [ROW]),
        (ops.expand(ROW, axis=0, size=4) * 2.0, []),
        (ops.cast(H, dtype=f16), []),
        (ops.less(H, X), []),
        (H @ ops.permute(H, order=(-1, -2)), []),
        # The sums of a product wait until they are written, so that what is added to them may lie there.
        (matmul_add(X, SQUARE, H), [H]),
        (matmul_add(H, SQUARE, H), []),
        (matmul_add(ops.permute(H, order=(-1, -2)), ops.exp(leaf.input("y", f32[4, 6])), SQUARE), [SQUARE]),
        (linear(H, SQUARE, act="relu"), []),
        (conv_bias_act(IMAGE, leaf.param("f", f32[3, 3, 1, 1]), None, ops.exp(IMAGE)), [ops.exp(IMAGE)]),
        (conv_bias_act(ops.exp(IMAGE), leaf.param("f", f32[3, 3, 1, 1]), None, ops.exp(IMAGE)), []),
        # Those of separate channels and of a norm may be written and read again.
        (conv_bias_act(IMAGE, leaf.param("f", f32[3, 1, 1, 1]), None, ops.exp(IMAGE), groups=3), []),
        (residual_rms_norm(H, ops.tanh(X), eps=1e-5), []),
        (ops.reduce_sum(H, axes=(0,)), []),
        (ops.top_k(H, k=2, axis=-1), []),
    ],
    ids=lambda value: value.op.name if isinstance(value, Value) else "",
)
def test_what_may_be_written_over(value: Value, roots: list[Value]) -> None:
    aliases = find_aliases([*Graph.of(value).values])
    found = [v for v in may_overwrite(value, aliases, RULES) if v.op is not leaf.CONST]
    assert found == [r for r in dict.fromkeys(roots)]


def test_flow_of_a_small_graph() -> None:
    several = ops.top_k(H, k=2, axis=-1)
    first, second = leaf.item(several, 0), leaf.item(several, 1)
    last = ops.permute(first, order=(-1, -2)) @ first
    steps = [H, several, last]
    flow = make_flow(steps, find_aliases(Graph.of(last).values), {last}, {}, Measure(64))
    assert flow.tensors == (H, first, second, last)
    assert flow.sizes == (96, 32, 64, 16)
    assert flow.weights == (128, 64, 64, 64)
    assert flow.makes == ((0,), (1, 2), (3,))
    assert flow.reads == ((), (0,), (1,))
    assert flow.after == ((), (0,), (1,))
    assert flow.readers == (1, 1, 0, 1)
    assert flow.ordered


def test_results() -> None:
    several = ops.top_k(H, k=2, axis=-1)
    assert results_of(H) == (H,)
    assert results_of(several) == (leaf.item(several, 0), leaf.item(several, 1))
