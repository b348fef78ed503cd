"""Expansions of every declared op: what no target keeps is spelled out, level by level, and means the same."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dovetail import Graph, library, ops
from dovetail.declare import FusedOp
from dovetail.derive.laws import fitting, graph_of
from dovetail.dtypes import c64, f16, f32
from dovetail.errors import UnsupportedError
from dovetail.ir.graph import Builder
from dovetail.ir.leaf import input
from dovetail.ir.origin import scope
from dovetail.ir.type import TensorType
from dovetail.ir.verify import verify
from dovetail.library.attention import attention
from dovetail.ops.primitive import Primitive
from dovetail.passes.claims import Claims
from dovetail.passes.legalize import legalize
from dovetail.passes.lowerings import LOWERINGS
from dovetail.targets.cpu.claims import CLAIMS as CPU
from dovetail.targets.cuda.claims import CLAIMS as CUDA
from tests.library.attending import attend, feeds, near, run

FUSED = tuple(op.name for op in library.ALL)


def plain(claims: Claims, *names: str) -> Claims:
    """A target without these fused ops; without any where none is named."""
    gone = names or FUSED
    return replace(claims, native={name: c for name, c in claims.native.items() if name not in gone})


def spelled_out(graph: Graph, claims: Claims) -> Graph:
    return legalize(graph, claims, lowerings=LOWERINGS).graph


@pytest.mark.slow
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
