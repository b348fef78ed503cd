"""Canonicalisation: every rule on an example, by the bit; then whole forms, patterns, and graphs at random."""

from __future__ import annotations

import math
from math import prod
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from numpy.typing import NDArray

from dovetail import Graph, Value, ops
from dovetail.derive.laws import feeds_of
from dovetail.dtypes import f32
from dovetail.ir import leaf, origin
from dovetail.ir.dtype import ALL as EVERY
from dovetail.ir.dtype import NARROW, DType, bool_, c64, f8e5m2, f16, f64, i32, i64, u8
from dovetail.ir.graph import Builder, Subgraph
from dovetail.ir.leaf import Hole, hole, input
from dovetail.ops import build
from dovetail.passes.canonical.casts import loses_nothing
from dovetail.passes.canonicalize import RULES, canonical_value, canonicalize
from dovetail.targets.reference.interpreter import evaluate
from tests.moving import MOVING
from tests.ops.meaning import nasty
from tests.passes.examples import EXAMPLES, Example
from tests.strategies import graphs
from tests.tolerances import assert_close

Array = NDArray[Any]
BY_NAME = {rule.name: rule for rule in RULES}


def canonical(value: Value, **options: Any) -> Value:
    return canonicalize(Graph.of(value), **options).outputs["y"]


def some_array(value: Value) -> Array:
    """The numbers where things go wrong, over and over, in the shape of a leaf."""
    numbers = nasty(value.dtype)
    shape = tuple(s for s in value.shape if isinstance(s, int))
    return np.resize(numbers, prod(shape)).reshape(shape)


def same_bits(got: Array, wanted: Array) -> bool:
    """Whether both are the same but for the payload of NaN."""
    if got.dtype != wanted.dtype or got.shape != wanted.shape:
        return False
    if wanted.dtype.kind in "biu":
        return bool((got == wanted).all())
    a, b = got.astype(np.float64), wanted.astype(np.float64)
    return bool(((np.isnan(a) & np.isnan(b)) | ((a == b) & (np.signbit(a) == np.signbit(b)))).all())


def test_every_rule_has_an_example_and_a_line_of_text() -> None:
    assert {e.rule for e in EXAMPLES} == set(BY_NAME)
    assert len(BY_NAME) == len(RULES)
    assert all(rule.doc for rule in RULES)


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda e: e.rule)
def test_a_rule_alone(example: Example) -> None:
    for dtype in example.dtypes:
        check_rule(example, dtype)


def check_rule(example: Example, dtype: DType) -> None:
    """The rule makes of an example what is written beside it: the same type, the same numbers."""
    rule = BY_NAME[example.rule]
    before = example.before(input("x", dtype[example.shape]))
    graph = Graph.of(before)
    changed = canonicalize(graph, rules=(rule,))
    assert changed.outputs["y"] is example.after(input("x", dtype[example.shape]))
    assert changed.outputs["y"].type == before.type
    assert canonicalize(graph, without={rule.name}, rules=(rule,)) is graph
    assert (canonicalize(graph, rules=(rule,), strict=True) is graph) == (rule.numerics == "reassociated")
    feeds = {v.attrs["name"]: some_array(v) for v in graph.inputs}
    params = {v.attrs["name"]: some_array(v) for v in graph.parameters}
    wanted, got = (
        evaluate(g, {v.attrs["name"]: feeds[v.attrs["name"]] for v in g.inputs}, params=params)["y"]
        for g in (graph, changed)
    )
    if rule.numerics == "exact" or not dtype.is_float:
        assert same_bits(got, wanted)
    else:
        assert_close(got, wanted.astype(np.float64), dtype)


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda e: e.rule)
def test_all_rules_together_agree_with_one(example: Example) -> None:
    x = input("x", example.dtypes[0][example.shape])
    assert canonical(example.before(x)) is canonical(example.after(x))


def test_what_is_not_exact_is_left_alone() -> None:
    x, n, u, z = input("x", f32[4]), input("n", i32[4]), input("u", u8[4]), input("z", c64[4])
    for kept in (
        x * 0,
        x - x,
        x / 3,
        n / 4,
        z * 1,  # an infinite part times 0 is NaN
        ops.pow_(x, 0.5),  # sqrt of -inf is NaN
        ops.abs_(-u),  # -u wraps
        ops.where(ops.greater(x, 0), x, 0),  # 0 for NaN
        ops.cast(ops.cast(x, dtype=f16), dtype=f32),
        ops.cast(ops.cast(n, dtype=f32), dtype=i64),
        ops.cast(ops.cast(x, dtype=bool_), dtype=f32),
        ops.cast(ops.cast(input("e", f8e5m2[2]), dtype=f32), dtype=f8e5m2),  # infinity is kept in range
        ops.cast(ops.cast(n, dtype=f64), dtype=u8),  # floats are kept in range, whole numbers wrap
    ):
        assert canonical(kept) is kept
    assert canonical(x + 0.0, strict=True) is x + 0.0


@pytest.mark.parametrize("source", [d for d in EVERY if d is not c64], ids=str)
def test_which_casts_lose_nothing(source: DType) -> None:
    """By NumPy: every number of a narrow type, the outermost ones of a wide one."""
    numbers = _all_numbers(source)
    for target in EVERY:
        assert loses_nothing(source, target) == _keeps(numbers, source, target), f"from {source} to {target}"


def _keeps(numbers: Array, source: DType, target: DType) -> bool:
    if source in NARROW or target in NARROW:
        return _stay(numbers, target)
    with np.errstate(all="ignore"):
        there = numbers.astype(target.numpy)
        back = np.real(there).astype(source.numpy)
        exact = same_bits(back, numbers) and (source.kind == "bool" or target.kind != "bool")
        if exact and source.is_integer and target.is_integer:
            exact = [int(i) for i in numbers] == [int(i) for i in there]
    return exact


def _stay(numbers: Array, target: DType) -> bool:
    """Whether numbers are the same in another dtype, one by one; a bool is a number only as a bool."""
    there = ops.cast.compute(numbers, dtype=target)
    pairs = zip(numbers.tolist(), np.asarray(there).tolist(), strict=True)
    return target is not bool_ and all(
        (a == b and math.copysign(1, a) == math.copysign(1, b.real)) or (a != a and b != b) for a, b in pairs
    )


def _all_numbers(dtype: DType) -> Array:
    if dtype.kind == "bool":
        return np.array([False, True])
    if dtype.bits < 8:
        return np.arange(2**dtype.bits, dtype=np.uint8).view(dtype.numpy)
    if dtype.bits <= 16:
        return np.arange(2**dtype.bits, dtype=np.uint32).astype(f"u{dtype.bits // 8}").view(dtype.numpy)
    if dtype.is_integer:
        limits = np.iinfo(dtype.numpy)
        # The largest number of all would be rounded up and wrap back; those below it are rounded and stay wrong.
        return np.array([limits.min, limits.max - 1, limits.max // 2, limits.max // 3], dtype.numpy)
    wide = np.finfo(dtype.numpy)
    return np.array([wide.max, wide.tiny, wide.smallest_subnormal, 1 + wide.eps, -0.0, np.nan, -np.inf], dtype.numpy)


def test_arithmetic_of_patterns() -> None:
    x, y = hole("x"), hole("y")
    written = [0.5 * x, x**2, 1.0 / ops.sqrt(x), x / ops.sqrt(y), x / 8, ops.maximum(0, x), x * 1, ops.greater(x, y)]
    wanted = [x * 0.5, x * x, ops.rsqrt(x), x * ops.rsqrt(y), x * 0.125, ops.relu(x), x, ops.less(y, x)]
    assert canonical_value(written) == wanted
    for kept in (x + 0, ops.div(x, Hole("c")), ops.sub(x, Hole("c")), ops.cast(x, dtype=f32), x / 3):
        assert canonical_value([kept]) == [kept]


def test_rules_apply_inside_sub_graphs() -> None:
    type = f32[3]
    inner = leaf.argument(0, type)
    bodies = Subgraph((type,), (ops.neg(-inner) * 2,)), Subgraph((type,), (inner + 1,))
    asked, x = input("asked", bool_[()]), input("x", type)
    branch = ops.if_(asked, x * 1, then=bodies[0], otherwise=bodies[1])
    (changed,) = canonical(branch[0]).operands
    assert changed.operands == (asked, x)
    assert changed.attrs["then"].results == (inner * 2,)


def test_origins_and_constraints_survive() -> None:
    builder = Builder(lines=False)
    with builder.recording():
        x = builder.input("x", f32["n", 4])
        with origin.scope("layer.turn"):
            y = build.swap(build.swap(x * 2, -1, -2), -1, -2)
        with origin.scope("layer.split"):
            z = ops.merge(ops.split(y, axis=-2, parts=3), axis=-2, count=2)
        builder.output("y", z + y)
    graph = builder.graph()
    changed = canonicalize(graph)
    assert graph.constraints
    assert set(graph.constraints) <= set(changed.constraints)
    assert {o.name for origins in changed.origins.values() for o in origins} == {"layer.turn", "layer.split"}
    assert canonicalize(changed) is changed


def test_constants_are_folded_up_to_a_limit() -> None:
    x = input("x", f32[64])
    table = leaf.constant(np.arange(64, dtype=np.float32))
    graph = Graph.of(x + ops.exp(table))
    assert canonicalize(graph, fold_bytes=4 * 63) is graph
    folded = canonicalize(graph, fold_bytes=4 * 64).outputs["y"].operands[1]
    assert np.array_equal(folded.attrs["value"].array, np.exp(np.arange(64, dtype=np.float32)))


def test_an_op_of_constants_that_fails_is_left_to_the_run() -> None:
    outside = ops.gather(leaf.constant(np.arange(3)), leaf.constant(np.array([7])), axis=0)
    assert canonical(outside) is outside


@pytest.mark.exhaustive
def test_long_chains() -> None:
    y = x = input("x", f32[2, 3])
    for _ in range(4_000):
        y = ops.relu(build.swap(y * 1.0, -1, -2))
    changed = canonicalize(Graph.of(y))
    assert changed.count() == 8_001
    y = x
    for _ in range(4_000):
        y = build.swap(-y, -1, -2)
    assert canonicalize(Graph.of(y)).count() == 8_001


@pytest.mark.slow
@given(graphs())
def test_graphs_at_random(drawn: tuple[Graph, dict[str, Array]]) -> None:
    check_random(*drawn)


@pytest.mark.slow
@given(graphs(symbolic=True))
def test_symbolic_graphs_at_random(drawn: tuple[Graph, dict[str, Array]]) -> None:
    check_random(*drawn)


@pytest.mark.slow
@given(graphs(symbolic=True, empty=True, moves=MOVING))
def test_movement_at_random(drawn: tuple[Graph, dict[str, Array]]) -> None:
    check_random(*drawn, exact=True)


def check_random(graph: Graph, feeds: dict[str, Array], *, exact: bool = False) -> None:
    changed = canonicalize(graph)
    assert {k: v.type for k, v in changed.outputs.items()} == {k: v.type for k, v in graph.outputs.items()}
    wanted, got = evaluate(graph, feeds, lift=not exact), evaluate(changed, feeds)
    for name, array in wanted.items():
        if exact:
            assert same_bits(got[name], array)
        else:
            assert_close(got[name], array, graph.outputs[name].dtype)
    assert canonicalize(changed) is changed


def test_scores_that_are_rounded_before_they_are_widened_stay() -> None:
    """A cast to f16 and back between scores and mask ended in an add of two dtypes."""
    q, k, mask = input("q", f32[2, 4, 8, 16]), input("k", f32[2, 4, 16, 8]), input("m", f32[2, 1, 8, 8])
    for scores in (q @ k, q @ k * 0.5):
        y = ops.cast(ops.cast(scores, dtype=f16), dtype=f32) + mask
        graph = Graph.of(y)
        feeds = feeds_of(graph, 1)
        np.testing.assert_array_equal(evaluate(canonicalize(graph), feeds)["y"], evaluate(graph, feeds)["y"])
