"""Elementwise regions: by examples, then at random against the float64 reference."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given

from dovetail import Graph, Value, ops
from dovetail.derive.unfuse import unfuse
from dovetail.dtypes import f32
from dovetail.ir.dtype import NARROW, f8e4m3fn, f64
from dovetail.ir.leaf import input, param
from dovetail.ir.literal import Array
from dovetail.ops.region import region, steps
from dovetail.passes.batch import batch_regions
from dovetail.passes.canonicalize import canonicalize
from dovetail.passes.regions import LIMIT, RegionLimits, mark_regions
from dovetail.passes.specialize import specialize
from dovetail.runtime.compile import compilation, explain
from dovetail.runtime.request import make_request
from dovetail.targets.cpu.claims import CLAIMS as CPU
from dovetail.targets.cuda.claims import CLAIMS as CUDA
from dovetail.targets.reference.interpreter import evaluate
from tests.strategies import graphs

A, B, C, D = (input(n, f32[4, 8]) for n in "abcd")


def names_of_steps(value: Value) -> list[str]:
    assert value.op is region
    return [v.op.name for v in steps(value.attrs["body"])]


def regions_in(graph: Graph) -> list[Value]:
    return [v for v in graph.values if v.op is region]


def test_a_chain_is_one_region() -> None:
    marked = mark_regions(Graph.of(ops.relu((A + B) * C))).graph
    assert marked.count() == 4
    assert marked.outputs["y"].operands == (A, B, C)
    assert names_of_steps(marked.outputs["y"]) == ["add", "mul", "relu"]


def test_compare_where_add() -> None:
    marked = mark_regions(Graph.of(ops.where(ops.less(A, B), A, C) + D)).graph
    assert names_of_steps(marked.outputs["y"]) == ["less", "where", "add"]


@pytest.mark.parametrize(
    "value",
    [(A + B) * (C + D), (A + B) * (A + B), (A + B) * ops.sigmoid(A + B)],
    ids=["diamond", "square", "silu"],
)
def test_a_dag_is_one_region(value: Value) -> None:
    assert len(regions_in(mark_regions(Graph.of(value)).graph)) == 1


def test_a_value_with_two_readers_outside_is_materialised_once() -> None:
    shared = A + B
    graph = Graph.of({"p": ops.exp(shared) * C, "q": ops.relu(shared) + 1.0})
    marked = mark_regions(graph).graph
    assert marked.count(ops.add) == 1
    assert len(regions_in(marked)) == 2


def test_an_output_inside_stays_visible() -> None:
    inner = A + B
    marked = mark_regions(Graph.of({"y": ops.exp(inner) * C, "inner": inner})).graph
    assert marked.outputs["inner"] is inner


def test_one_op_is_no_region() -> None:
    graph = Graph.of(A + B)
    assert mark_regions(graph).graph.outputs["y"] is graph.outputs["y"]


def test_unfusing_gives_back_the_same_values() -> None:
    graph = Graph.of({"y": ops.relu((A + B) * C), "z": ops.exp(A) - D})
    back = unfuse(mark_regions(graph).graph)
    assert all(back.outputs[n] is graph.outputs[n] for n in graph.outputs)


def test_over_the_limit_a_region_is_cut_and_the_cut_is_reported() -> None:
    value: Value = A
    for _ in range(70):
        value = ops.exp(value) + B
    marked = mark_regions(Graph.of(value), RegionLimits(steps=32, inputs=16))
    assert [len(names_of_steps(v)) for v in regions_in(marked.graph)] == [12, 32, 32, 32, 32]
    assert {m.reason for m in marked.missed} == {LIMIT}
    assert len(regions_in(mark_regions(Graph.of(value)).graph)) == 1


@pytest.mark.slow
def test_a_region_that_is_cut_is_one_miss_with_the_price_of_every_cut() -> None:
    value = A
    for _ in range(70):
        value = ops.exp(value) + B
    report = explain(Graph.of(value), target="cuda")
    (missed,) = report.missed
    assert missed.reason == LIMIT and "cut into 5" in missed.message and not missed.hint
    assert missed.seconds == pytest.approx(sum(b.seconds for b in report.boundaries))
    assert [b.reason for b in report.boundaries] == [LIMIT] * 4


@pytest.mark.slow
@given(graphs(nodes=(20, 60)))
def test_regions_of_another_target_are_cut_to_the_limits_of_this_one(drawn: tuple[Graph, dict[str, Array]]) -> None:
    limits = CUDA.regions
    legal = compilation(drawn[0], make_request(target="cpu")).lowered.graph
    again = compilation(legal, make_request(target="cuda")).lowered.graph
    for value in regions_in(again):
        body = value.attrs["body"]
        assert limits.over(len(steps(body)), len(body.arguments)) is None


def test_a_long_region_of_another_target_is_cut() -> None:
    value = A
    for _ in range(40):
        value = ops.sin(value) + B
    legal = compilation(Graph.of(value), make_request(target="cpu")).lowered.graph
    again = compilation(legal, make_request(target="cuda")).lowered.graph
    assert [len(steps(v.attrs["body"])) for v in regions_in(legal)] == [80]
    assert max(len(steps(v.attrs["body"])) for v in regions_in(again)) <= 32


def test_more_inputs_than_the_target_takes() -> None:
    many = [input(f"i{k}", f32[4, 1 if k % 2 else 8]) for k in range(40)]
    total = many[0]
    for one in many[1:]:
        total = total + one
    marked = mark_regions(Graph.of(total), RegionLimits(inputs=16)).graph
    assert max(len(v.operands) for v in regions_in(marked)) <= 16
    assert len(regions_in(mark_regions(Graph.of(total)).graph)[0].operands) == 40
    feeds = {str(v.attrs["name"]): np.full([int(str(s)) for s in v.shape], k, np.float32) for k, v in enumerate(many)}
    np.testing.assert_array_equal(evaluate(marked, feeds)["y"], np.full((4, 8), sum(range(40)), np.float32))


def test_movement_that_only_the_region_reads_folds_into_it() -> None:
    half = ops.part(A, axis=-1, index=0, parts=2) * ops.sigmoid(ops.part(A, axis=-1, index=1, parts=2))
    graph = Graph.of(half)
    marked = mark_regions(graph).graph
    assert marked.outputs["y"].operands == (A,)
    assert unfuse(marked).outputs["y"] is half


def test_a_doubled_image_is_read_where_it_is_made() -> None:
    """A nearest resize only says which element is read: it folds into the region, and comes out of it again."""
    image, skip = input("image", f32[1, 2, 3, 3]), input("skip", f32[1, 2, 6, 6])
    doubled = ops.resize(image, axes=(-2, -1), sizes=(6, 6), mode="nearest", coordinates="asymmetric", rounding="floor")
    graph = Graph.of(ops.relu(doubled + skip))
    found = mark_regions(graph, RegionLimits(steps=32, inputs=16)).graph
    assert set(found.outputs["y"].operands) == {image, skip}
    assert unfuse(found).outputs["y"] is graph.outputs["y"]
    longer = Graph.of(ops.exp(ops.neg(ops.relu(doubled + skip))))
    cut = mark_regions(longer, RegionLimits(steps=2)).graph
    assert [names_of_steps(v) for v in regions_in(cut)] == [["add", "relu"], ["neg", "exp"]]
    assert cut.count(ops.resize) == 0
    assert unfuse(cut).outputs["y"] is longer.outputs["y"]
    small = np.arange(18, dtype=np.float32).reshape(1, 2, 3, 3)
    wanted = np.maximum(small.repeat(2, axis=2).repeat(2, axis=3) - 9, 0)
    feeds = {"image": small, "skip": np.full((1, 2, 6, 6), -9, np.float32)}
    np.testing.assert_array_equal(evaluate(found, feeds)["y"], wanted)
    np.testing.assert_allclose(evaluate(cut, feeds)["y"], np.exp(-wanted), rtol=1e-6)
    # One that others read stays where it is.
    shared = mark_regions(Graph.of({"y": ops.relu(doubled + skip), "doubled": doubled})).graph
    assert shared.outputs["doubled"] is doubled and doubled in shared.outputs["y"].operands


def test_sizes_that_are_not_known_and_the_same_once_they_are() -> None:
    x, row = input("x", f32["s", 8]), input("row", f32["t", 1])
    graph = Graph.of(ops.relu((x + row) * 2.0))
    open_ = mark_regions(graph).graph
    assert names_of_steps(open_.outputs["y"]) == ["add", "mul", "relu"]
    assert unfuse(open_).outputs["y"] is graph.outputs["y"]
    sizes = {"s": 3, "t": 3}
    late, early = specialize(open_, sizes), mark_regions(specialize(graph, sizes)).graph
    assert late.outputs["y"] is early.outputs["y"]
    again = mark_regions(canonicalize(unfuse(late))).graph
    assert names_of_steps(again.outputs["y"]) == ["add", "mul", "relu"]
    feeds = {"x": np.full((3, 8), 2, np.float32), "row": np.array([[-3], [0], [3]], np.float32)}
    wanted = np.tile([[0], [4], [10]], (1, 8))
    for found in (open_, late, again):
        np.testing.assert_array_equal(evaluate(found, feeds)["y"], wanted)


def test_limits_are_those_of_the_target() -> None:
    limits = CUDA.regions
    assert limits == RegionLimits(steps=32, inputs=16, apart=NARROW, has_code=limits.has_code)
    # Far beyond what models have: LLVM takes quadratic time for more.
    assert CPU.regions == RegionLimits(steps=1024, inputs=128)


def test_steps_of_dtypes_that_region_kernels_lack_stand_apart() -> None:
    wide = ops.cast(input("q", f8e4m3fn[8]), dtype=f32)
    graph = Graph.of(ops.relu(wide * 2.0 + 1.0))
    joined = mark_regions(graph).graph.outputs["y"]
    apart = mark_regions(graph, RegionLimits(apart=NARROW)).graph.outputs["y"]
    assert joined.op is region and joined.operands[0].dtype is f8e4m3fn
    assert apart.op is region and apart.operands == (wide,)


def test_steps_without_compiled_code_stand_apart() -> None:
    middle = ops.sin(input("x", f64[8]) * 2.0 + 1.0)
    graph = Graph.of(ops.relu(middle + 1.0) * 2.0)
    apart = mark_regions(graph, RegionLimits(has_code=lambda v: v.op is not ops.sin)).graph.outputs["y"]
    (found,) = apart.operands
    assert apart.op is region and found.op is ops.sin and found.operands[0].op is region


def test_weights_alone_are_not_pulled_into_a_region_that_runs_every_time() -> None:
    scale = ops.exp(param("w", f32[8])) + 1.0
    marked = mark_regions(Graph.of(ops.relu(A * scale))).graph
    assert scale in marked.outputs["y"].operands


def test_scalars_are_written_into_the_kernel() -> None:
    assert mark_regions(Graph.of(ops.relu(A * 2.0 + 1.0))).graph.outputs["y"].operands == (A,)


def test_regions_of_one_form_run_as_one_kernel() -> None:
    graph = Graph.of({n: ops.relu(v * 2.0 + 1.0) for n, v in (("p", A), ("q", B), ("r", C))})
    batched = batch_regions(mark_regions(graph).graph)
    assert len(regions_in(batched.graph)) == 1
    assert [a.variant for a in batched.applied] == ["3 lanes"]
    feeds = {n: np.full((4, 8), i, np.float32) for i, n in enumerate("abc")}
    got = evaluate(batched.graph, feeds)
    assert [float(got[n][0, 0]) for n in "pqr"] == [1.0, 3.0, 5.0]
    assert all(unfuse(batched.graph).outputs[n] is graph.outputs[n] for n in "pqr")


def test_regions_that_depend_on_each_other_are_not_batched() -> None:
    once = ops.relu(A * 2.0 + 1.0)
    twice = ops.relu(ops.reduce_sum(once, axes=(-1,)) + A * 0.0)
    graph = Graph.of({"p": once, "q": ops.relu(twice * 2.0 + 1.0)})
    batched = batch_regions(mark_regions(graph).graph).graph
    assert all(v.attrs["lanes"] == 1 for v in regions_in(batched))


@pytest.mark.slow
@given(graphs())
def test_random_graphs_keep_their_values(drawn: tuple[Graph, dict[str, Array]]) -> None:
    graph, feeds = drawn
    marked = mark_regions(graph, RegionLimits(steps=5, inputs=4)).graph
    wanted, got = evaluate(graph, feeds, lift=True), evaluate(marked, feeds, lift=True)
    for name in wanted:
        np.testing.assert_array_equal(got[name], wanted[name])
    back = unfuse(marked)
    assert all(back.outputs[n] is graph.outputs[n] for n in graph.outputs)
