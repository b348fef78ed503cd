"""Expansions of every declared op: what no target keeps is spelled out, level by level, and means the same."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from dovetail import Graph, library, ops
from dovetail.declare import FusedOp
from dovetail.derive.laws import fitting, graph_of
from dovetail.dtypes import c64, f16, f32
from dovetail.errors import UnsupportedError
from dovetail.ir.graph import Builder
from dovetail.ir.leaf import input, param
from dovetail.ir.origin import scope
from dovetail.ir.type import TensorType
from dovetail.ir.verify import verify
from dovetail.library.attention import attention
from dovetail.library.attention_block import attention_block
from dovetail.library.lora_matmul import lora_matmul
from dovetail.library.transformer_layer import transformer_layer
from dovetail.ops.primitive import Primitive
from dovetail.passes.claims import Claims
from dovetail.passes.legalize import legalize
from dovetail.passes.lowerings import LOWERINGS
from dovetail.targets.cpu.claims import CLAIMS as CPU
from dovetail.targets.cuda.claims import CLAIMS as CUDA
from tests.library import test_transformer_layer as bert
from tests.library.attending import attend, feeds, heads_of, joined_heads, near, recognised, run

FUSED = tuple(op.name for op in library.ALL)


def plain(claims: Claims, *names: str) -> Claims:
    """A target without these fused ops; without any where none is named."""
    gone = names or FUSED
    return replace(claims, native={name: c for name, c in claims.native.items() if name not in gone})


def spelled_out(graph: Graph, claims: Claims) -> Graph:
    return legalize(graph, claims, lowerings=LOWERINGS).graph


@pytest.mark.parametrize(("bias", "operands"), [(True, 14), (False, 8)])
@pytest.mark.parametrize("target", [CPU, CUDA], ids=["cpu", "cuda"])
def test_a_whole_layer(bias: bool, operands: int, target: Claims) -> None:
    spelled = bert.layer(bert.X, joined=True, bias=bias)
    graph = recognised(spelled, machine=CPU.machine).graph
    assert graph.outputs["y"].op is transformer_layer and len(graph.outputs["y"].operands) == operands
    arrays = feeds(graph)
    wanted = bert.expected(arrays, joined=True)
    # One level down, then to the end.
    middle = spelled_out(graph, plain(target, "transformer_layer"))
    kept = "attention_block" in target.native
    assert middle.count(attention_block) == kept and middle.count(transformer_layer) == 0
    end = spelled_out(graph, plain(target))
    assert all(isinstance(v.op, Primitive) for v in end.values if v.operands)
    for form in (middle, end):
        near(run(form, arrays)["y"], wanted)


def test_a_block_of_attention_keeps_its_scale_mask_and_heads() -> None:
    x, mask = input("x", f32[2, 3, 8]), input("mask", f32[2, 1, 1, 3])
    w, wo = param("w", f32[8, 24]), param("wo", f32[8, 8])
    graph = Graph.of(attention_block(x, w, wo, mask=mask, heads=2, scale=0.3))
    arrays = feeds(graph)
    q, k, v = (heads_of(part, 2) for part in np.split(arrays["x"] @ arrays["w"], 3, axis=-1))
    wanted = joined_heads(attend(q, k, v, scale=0.3, added=arrays["mask"])) @ arrays["wo"]
    for claims in (plain(CPU, "attention_block"), plain(CPU, "attention_block", "attention"), plain(CPU), plain(CUDA)):
        form = spelled_out(graph, claims)
        assert form.count(attention_block) == 0
        near(run(form, arrays)["y"], wanted)


def test_a_low_rank_update() -> None:
    x, w = input("x", f32[2, 3, 4]), param("w", f32[4, 5])
    graph = Graph.of(lora_matmul(x, w, param("a", f32[4, 2]), param("b", f32[2, 5]), scale=0.5))
    form = spelled_out(graph, plain(CPU))
    assert all(isinstance(v.op, Primitive) for v in form.values if v.operands)
    arrays = feeds(graph)
    near(run(form, arrays)["y"], arrays["x"] @ (arrays["w"] + 0.5 * arrays["a"] @ arrays["b"]))


@pytest.mark.parametrize("op", library.ALL, ids=lambda op: op.name)
def test_every_op_goes_down_to_primitives_of_the_same_types(op: FusedOp[...]) -> None:
    """What they mean is for the laws; here every variant has somewhere to go."""
    for variant in op.variants[:: max(1, len(op.variants) // 8)]:
        chosen = fitting(op, variant, seed=7)
        value = op(**chosen)
        results = (value,) if isinstance(value.type, TensorType) else tuple(value)
        graph = graph_of(results, chosen)
        form = spelled_out(graph, plain(CPU))
        verify(form)
        assert all(isinstance(v.op, Primitive) for v in form.values if v.operands)
        assert [v.type for v in form.outputs.values()] == [v.type for v in graph.outputs.values()]


def test_a_kernel_with_a_condition_takes_what_fits_it_and_the_rest_is_spelled_out() -> None:
    narrow, wide = input("narrow", f16[1, 2, 3, 160]), input("wide", f32[1, 2, 3, 160])
    graph = Graph.of({n: attention(q, q, q, scale=0.5) for n, q in (("narrow", narrow), ("wide", wide))})
    made = legalize(graph, CUDA, lowerings=LOWERINGS)
    assert made.graph.count(attention) == 1
    rows = {(row.op, row.outcome): row for row in made.dispatch}
    assert rows["attention", "native"].count == rows["attention", "common"].count == 1
    assert "f32 with up to 128 features" in rows["attention", "common"].reason
    arrays = feeds(graph)
    near(run(made.graph, arrays)["wide"], attend(*[arrays["wide"]] * 3, scale=0.5))


def test_nothing_but_one_error_with_every_node_its_place_and_the_target() -> None:
    builder = Builder(lines=False)
    with builder.recording():
        z = builder.input("z", c64[2])
        for name in ("first", "second", "third"):
            with scope(name):
                z = ops.exp(z)
        builder.output("y", z)
    with pytest.raises(UnsupportedError) as raised:
        spelled_out(builder.graph(), CUDA)
    assert "3 values have no kernel on cuda" in raised.value.message
    for name in ("first", "second", "third"):
        assert f"exp c64[2] at {name}" in raised.value.message
    assert raised.value.hint and raised.value.exit_code == 2
