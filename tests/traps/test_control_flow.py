"""Traps 30 to 35: branches and loops on targets that have none."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from dovetail import Graph, Value, ops
from dovetail.dtypes import bool_, f16, f32, i32, i64
from dovetail.errors import TypeRuleError
from dovetail.graphs import TensorType
from dovetail.ir.graph import walk_into
from dovetail.ir.leaf import constant, input
from dovetail.library.swiglu import swiglu
from dovetail.ops.primitive import Primitive
from dovetail.ops.tracing import subgraph
from dovetail.passes.legalize import legalize
from dovetail.passes.lowerings import LOWERINGS
from dovetail.targets.cpu.claims import CLAIMS as CPU
from dovetail.targets.cuda.claims import CLAIMS as CUDA
from dovetail.targets.reference.interpreter import evaluate
from tests.library import judge
from tests.library.judge import Array, near

FLAG, COUNT = TensorType(bool_, ()), TensorType(i64, ())


def lowered(outputs: Mapping[str, Value]) -> Graph:
    """The graph for a target that can neither branch nor loop nor stretch."""
    graph = legalize(Graph.of(outputs), CUDA, lowerings=LOWERINGS).graph
    assert not {v.op.name for v in walk_into(graph.outputs.values())} & {"if", "while", "scan"}
    return graph


def both_ways(outputs: Mapping[str, Value], *runs: Mapping[str, Any]) -> list[list[dict[str, Array]]]:
    """For each run the outputs where branches and loops run as such, and where they are spelled out."""
    forms = (Graph.of(outputs), lowered(outputs))
    fed = [{name: np.asarray(array) for name, array in feeds.items()} for feeds in runs]
    return [[evaluate(graph, feeds) for graph in forms] for feeds in fed]


def test_trap_30_branches_in_loops_in_branches() -> None:
    """Systems that spell out the outermost branch or loop leave the ones in its bodies to a kernel that has none.

    A branch in a scan in a branch is spelled out to the last level, and gives what plain Python gives.
    """

    def step(total: Value, x: Value) -> tuple[Value, Value]:
        (bent,) = ops.cond(ops.greater(total, 2.0), lambda x: x * 0.5, lambda x: x + 1.0, x)
        return total + bent, total * bent

    def folded(xs: Value) -> tuple[Value, ...]:
        scanned = ops.scan(step, [constant(0.0, f32)], [xs])
        return (*scanned.carries, *scanned.outputs)

    def untouched(xs: Value) -> tuple[Value, ...]:
        return constant(-1.0, f32), xs

    total, trail = ops.cond(input("flag", FLAG), folded, untouched, input("xs", f32[4]))
    xs = np.array([1.0, 3.0, -2.0, 0.5], np.float32)
    wanted, steps = 0.0, list[float]()
    for x in xs.tolist():
        bent = x * 0.5 if wanted > 2 else x + 1
        wanted, steps = wanted + bent, [*steps, wanted * bent]
    runs = both_ways({"total": total, "trail": trail}, {"flag": True, "xs": xs}, {"flag": False, "xs": xs})
    for results, expected in zip(runs, ((wanted, steps), (-1.0, xs.tolist())), strict=True):
        for got in results:
            assert (got["total"].tolist(), got["trail"].tolist()) == expected


def test_trap_30_fused_ops_in_the_body_of_a_loop() -> None:
    """A target that runs loops is handed a body with a fused op that it has no kernel for, unless bodies are entered.

    What is not native is expanded inside bodies as it is outside.
    """
    x, up, gate = input("x", f32[2, 4]), input("up", f32[4, 4]), input("gate", f32[4, 4])

    def body(i: Value, y: Value, up: Value, gate: Value) -> tuple[Value, ...]:
        return i + 1, swiglu(y, up, gate)

    loop = ops.while_loop(lambda i, y, u, g: ops.less(i, 3), body, [constant(0, i64), x], [up, gate], limit=5)
    claims = replace(CPU, native={k: v for k, v in CPU.native.items() if k not in ("swiglu", "silu")})
    legal = legalize(Graph.of(loop.carries[1]), claims, lowerings=LOWERINGS).graph
    assert legal.count(ops.while_) == 1
    assert all(v.op is not swiglu for v in walk_into(legal.outputs.values()))
    rng = np.random.default_rng(0)
    arrays = {name: rng.normal(size=shape) for name, shape in (("x", (2, 4)), ("up", (4, 4)), ("gate", (4, 4)))}
    wanted = arrays["x"]
    for _ in range(3):
        wanted = wanted @ arrays["up"] * judge.silu(wanted @ arrays["gate"])
    near(evaluate(legal, arrays, lift=True)["y"], wanted)


def test_trap_31_a_scalar_predicate_is_stretched() -> None:
    """A select kernel that reads as many conditions as elements reads past a predicate of one.

    Where kernels need equal shapes, the predicate has the shape of each result, whatever its rank.
    """
    flag, x, n = input("flag", FLAG), input("x", f32[2, 3]), input("n", i64[4])
    one, two, three = ops.cond(
        flag,
        lambda x, n: (x * 2.0, n + 1, ops.squeeze(ops.reduce_sum(x, axes=(-2, -1)), axes=(-2, -1))),
        lambda x, n: (x - 1.0, n * n, constant(7.0, f32)),
        x,
        n,
    )
    outputs = {"one": one, "two": two, "three": three}
    for value in lowered(outputs).values:
        if value.op.elementwise:
            plain = [v for v in value.operands if v.op.name != "const" or v.rank > 0]
            assert all(v.shape == value.shape for v in plain), value
    feeds = {"x": np.arange(6, dtype=np.float32).reshape(2, 3), "n": np.arange(4)}
    yes, no = both_ways(outputs, {**feeds, "flag": True}, {**feeds, "flag": False})
    for got in yes:
        assert got["one"].tolist() == [[0, 2, 4], [6, 8, 10]]
        assert (got["two"].tolist(), got["three"].tolist()) == ([1, 2, 3, 4], 15.0)
    for got in no:
        assert got["one"].tolist() == [[-1, 0, 1], [2, 3, 4]]
        assert (got["two"].tolist(), got["three"].tolist()) == ([0, 1, 4, 9], 7.0)


def test_trap_32_every_carry_is_frozen_in_its_own_shape_and_dtype() -> None:
    """A freeze by a product with a mask makes NaN of inf * 0, and a mask like the first carry fits no other.

    Once the condition has failed, every carry keeps its value, though the spelled out trips go on to divide by 0,
    and though the condition would hold again for what they compute.
    """
    start, end = input("start", f16[3]), input("end", COUNT)

    def holds(x: Value, i: Value, seen: Value, total: Value, end: Value) -> Value:
        return ops.not_equal(i, end)

    def body(x: Value, i: Value, seen: Value, total: Value, end: Value) -> tuple[Value, ...]:
        left = ops.cast(end - i, dtype=f32)
        return x * 2.0, i + 1, ops.bit_not(seen), total + 1.0 / left

    flags = input("flags", bool_[2, 2])
    loop = ops.while_loop(holds, body, [start, constant(0, i64), flags, constant(0.0, f32)], [end], limit=6)
    outputs = {name: loop.carries[k] for k, name in enumerate(("x", "i", "seen", "total"))}
    first, seen = np.array([1, -3, 0.5], np.float16), np.array([[True, False], [False, False]])
    runs = both_ways(
        {**outputs, "stopped": loop.stopped}, *({"start": first, "end": count, "flags": seen} for count in range(8))
    )
    for count, results in enumerate(runs):
        trips = min(count, 6)
        total = np.float32(0)
        for i in range(trips):
            total += np.float32(1) / np.float32(count - i)
        for got in results:
            assert (got["x"].dtype, got["x"].tolist()) == (np.float16, (first * 2**trips).tolist())
            assert (got["i"].dtype, got["i"].tolist()) == (np.int64, trips)
            assert got["seen"].tolist() == (seen ^ bool(trips % 2)).tolist()
            assert got["total"].tolist() == total
            assert got["stopped"].tolist() == (count > 6)


def test_trap_33_all_carries_come_back() -> None:
    """Systems that lower a loop to the value of its first carry lose the others, or hand out the first for each.

    Each carry and each stacked output comes back in its place.
    """
    n = input("n", COUNT)
    loop = ops.while_loop(
        lambda i, a, b, n: ops.less(i, n),
        lambda i, a, b, n: (i + 1, b, a + b),
        [constant(0, i64), constant(0, i64), constant(1, i64)],
        [n],
        limit=10,
    )
    a, b = 0, 1
    for _ in range(7):
        a, b = b, a + b
    for got in both_ways({name: loop.carries[k] for k, name in enumerate("iab")}, {"n": 7})[0]:
        assert [got[name].tolist() for name in "iab"] == [7, a, b]
    scanned = ops.scan(
        lambda low, high, x: (ops.minimum(low, x), ops.maximum(high, x), x * x, high - low),
        [constant(9, i32), constant(-9, i32)],
        [input("xs", i32[4])],
        reverse=True,
    )
    (low, high), (square, spread) = scanned
    named = {"low": low, "high": high, "square": square, "spread": spread}
    for got in both_ways(named, {"xs": np.array([3, -1, 4, 2], np.int32)})[0]:
        assert (got["low"].tolist(), got["high"].tolist()) == (-1, 4)
        assert got["square"].tolist() == [9, 1, 16, 4]
        assert got["spread"].tolist() == [4 - -1, 4 - 2, 2 - 2, -9 - 9]


def test_trap_34_a_body_takes_exactly_what_it_is_given() -> None:
    """Where captures are bound by position, one too many is ignored, and every one behind it is another than meant.

    A body has one argument for each operand: more or fewer is an error that counts both.
    """
    flag, i, x, y = input("flag", FLAG), input("i", COUNT), input("x", f32[2]), input("y", f32[2])
    alone, pair = subgraph(lambda x: x, [f32[2]]), subgraph(lambda x, y: x + y, [f32[2], f32[2]])
    holds, turn = subgraph(lambda i: ops.less(i, 3), [COUNT]), subgraph(lambda i: i + 1, [COUNT])
    wrong: list[Callable[[], Value]] = [
        lambda: ops.if_(flag, x, y, then=alone, otherwise=alone),
        lambda: ops.if_(flag, x, then=pair, otherwise=pair),
        lambda: ops.if_(flag, x, y, then=pair, otherwise=alone),
        lambda: ops.while_(i, x, condition=holds, body=turn, carries=1, limit=2),
        lambda: ops.scan_(i, x, y, body=subgraph(lambda i, x: i, [COUNT, TensorType(f32, ())]), carries=1, scanned=1),
    ]
    for build in wrong:
        with pytest.raises(TypeRuleError, match="arguments"):
            build()
    (total,) = ops.cond(flag, lambda x, y: x - y, lambda x, y: y, x, y)
    feeds = {"flag": True, "x": np.array([5, 7], np.float32), "y": np.array([1, 2], np.float32)}
    for got in both_ways({"y": total}, feeds)[0]:
        assert got["y"].tolist() == [4, 5]


def reduced(reduce: Primitive, flags: Value) -> Value:
    """All flags as one bool."""
    return ops.squeeze(reduce(flags, axes=(-1,)), axes=(-1,))


def doubled(reduce: Primitive, x: Value) -> Value:
    """x doubled while any or all of it is below 4."""
    return ops.while_loop(lambda x: reduced(reduce, ops.less(x, 4.0)), lambda x: x * 2.0, [x], limit=8).carries[0]


@pytest.mark.slow
def test_trap_35_a_condition_is_one_bool() -> None:
    """A vector condition is "any" in one system, "the first" in another, and a select by element in its lowering.

    It is an error that asks for a reduction; with the reduction written, every way agrees.
    """
    x = input("x", f32[3])
    for type in (bool_[3], bool_[1], bool_[1, 1]):
        with pytest.raises(TypeRuleError, match="one bool"):
            ops.cond(input("flags", type), lambda x: x, lambda x: -x, x)
        with pytest.raises(TypeRuleError, match="one bool"):
            ops.while_loop(lambda c: c, lambda c: c, [input("flags", type)], limit=2)
    flags = input("flags", bool_[3])
    for reduce, meant in ((ops.reduce_any, any), (ops.reduce_all, all)):
        (chosen,) = ops.cond(reduced(reduce, flags), lambda x: x, lambda x: -x, x)
        last = doubled(reduce, x)
        start, sets = [1.0, 2.0, 3.0], ([True, False, False], [True, True, True], [False, False, False])
        wanted = list(start)
        while meant(v < 4 for v in wanted):
            wanted = [v * 2 for v in wanted]
        feeds = [{"flags": np.array(each), "x": np.array(start, np.float32)} for each in sets]
        for each, results in zip(sets, both_ways({"chosen": chosen, "last": last}, *feeds), strict=True):
            for got in results:
                assert got["chosen"].tolist() == (start if meant(each) else [-v for v in start])
                assert got["last"].tolist() == wanted
