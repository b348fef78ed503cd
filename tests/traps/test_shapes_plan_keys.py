"""Traps 41 to 47: sizes that are not known yet, what is planned for them, and keys that tell programs apart."""

from __future__ import annotations

import math
from itertools import product
from typing import Any, cast

import numpy as np
import pytest
from pytest import MonkeyPatch

from dovetail import Graph, Value, ops
from dovetail.declare import Cost, fused_op
from dovetail.dtypes import bool_, f32, f64
from dovetail.errors import BindError, TypeRuleError
from dovetail.ir import leaf
from dovetail.ir.dim import evaluate as number
from dovetail.ir.dim import symbol
from dovetail.ir.dtype import DType
from dovetail.ir.graph import Subgraph
from dovetail.ir.leaf import input, param
from dovetail.ir.type import TensorType
from dovetail.library.linear import linear
from dovetail.ops.build import reshape
from dovetail.passes.specialize import specialize
from dovetail.plan import fingerprint
from dovetail.plan.plan import make_plan
from dovetail.plan.verify import verify_plan
from dovetail.runtime.compile import compile
from dovetail.targets.reference.claims import CLAIMS as REFERENCE
from dovetail.targets.reference.interpreter import evaluate
from dovetail.targets.reference.planned import PlannedGraph
from tests.library import judge

S, T = symbol("s"), symbol("t")


def ones(*shape: int) -> np.ndarray[Any, np.dtype[np.float32]]:
    return np.ones(shape, np.float32)


def counting(*shape: int) -> np.ndarray[Any, np.dtype[np.float32]]:
    return np.arange(math.prod(shape), dtype=np.float32).reshape(shape)


def refused(graph: Graph, feeds: dict[str, Any], binding: dict[str, int], message: str) -> None:
    """The graph takes these sizes neither specialised, nor interpreted, nor compiled."""
    with pytest.raises(BindError, match=message):
        specialize(graph, binding)
    with pytest.raises(BindError, match=message):
        evaluate(graph, feeds)
    program = compile(graph)
    with pytest.raises(BindError, match=message):
        program.specialize(binding)
    with pytest.raises(BindError, match=message):
        program.run(feeds)


def test_trap_41_a_reshape_keeps_the_number_of_elements() -> None:
    """Where sizes are unknown, systems flatten [2, s, h] to [s, h], and a -1 drops the elements that do not fit.

    A reshape to another count is refused when it is written; where only the sizes can tell, when they are bound.
    """
    x = input("x", f32[2, "s", 8])
    for wanted in ((S, 8), (4 * S, 8), (2, S, 4), (2 * S, 16)):
        with pytest.raises(TypeRuleError, match="keeps the number of elements"):
            reshape(x, wanted)
    assert reshape(x, (-1, 8)).shape == (2 * S, 8)
    for shape, wanted in (((10,), (-1, 3)), ((3, 5), (2, -1)), ((7,), (-1, 2))):
        with pytest.raises(TypeRuleError, match="not a multiple"):
            reshape(input("y", f32[shape]), wanted)
    with pytest.raises(TypeRuleError, match="keeps the number of elements"):
        reshape(input("y", f32[10]), (3, 3))
    thirds = Graph.of(ops.exp(reshape(input("y", f32["s", 4]), (-1, 3))))
    refused(thirds, {"y": ones(4, 4)}, {"s": 4}, r"4\*s multiple of 3 does not hold: found 16 and 3")
    np.testing.assert_allclose(
        compile(thirds).run({"y": counting(6, 4)})["y"], np.exp(np.arange(24.0)).reshape(8, 3), rtol=1e-6
    )
    stated = Graph.of({"y": ops.exp(reshape(x, (T, 8))), "z": ops.exp(input("t", f32["t"]))})
    refused(stated, {"x": ones(2, 3, 8), "t": ones(5)}, {"s": 3, "t": 5}, r"2\*s equals t does not hold")
    assert compile(stated).run({"x": ones(2, 3, 8), "t": ones(6)})["y"].shape == (6, 8)


@pytest.mark.slow
def test_trap_42_a_contracted_size_is_bound_to_one_number() -> None:
    """A symbol that meets a weight of 6 rows is bound to 5 without a word, and the product reads past the rows.

    That the two agree is recorded where they meet, survives every pass, and is asked for when the symbol is bound.
    """
    x, w, b = input("x", f32["m", "k"]), param("w", f32[6, 5]), param("b", f32[5])
    for value in (x @ w, linear(x, w, b, act="relu"), ops.relu(x @ w + b), ops.dot(x, w, left=(-1,), right=(-2,))):
        graph = Graph.of(value)
        wrong, right = {"m": 2, "k": 5}, {"m": 2, "k": 6}
        weights = {"w": counting(6, 5), "b": ones(5)}
        mine = {n: a for n, a in weights.items() if n in [v.attrs["name"] for v in graph.parameters]}
        with pytest.raises(BindError, match="k equals 6 does not hold: found 5 and 6"):
            specialize(graph, wrong)
        program = compile(graph).bind(mine)
        with pytest.raises(BindError, match="k equals 6 does not hold"):
            program.run({"x": ones(2, 5)})
        with pytest.raises(BindError, match="k equals 6 does not hold"):
            evaluate(program.graph, {"x": ones(2, 5)}, params=mine)
        assert str(specialize(graph, right).outputs["y"].type) == "f32[2, 5]"
        # Each column of w adds up to 75 + 6 j, all of it above zero; the bias is 1.
        wanted = np.tile(75 + 6 * np.arange(5) + len(graph.parameters) - 1, (2, 1))
        np.testing.assert_array_equal(program.run({"x": ones(2, 6)})["y"], wanted)


def test_trap_43_sizes_that_are_not_known_take_memory() -> None:
    """A planner that counts an unbound symbol as zero gives every tensor an empty slot, one on top of the other.

    Slots of unknown sizes are sums of symbols; with any numbers they hold their tensors, and the plan runs as it is.
    """
    x, w = input("x", f32["b", "s", 4]), param("w", f32[4, 4])
    hidden = ops.tanh(x @ w)
    graph = Graph.of({"y": hidden @ w + x, "sums": ops.reduce_sum(hidden, axes=(-1,))})
    plan = make_plan(graph, target=REFERENCE)
    verify_plan(plan)
    assert plan.symbols == ("b", "s")
    for sizes in ({"b": 1, "s": 1}, {"b": 3, "s": 5}, {"b": 2, "s": 0}):
        for value, slot in plan.slots.items():
            elements = math.prod(number(size, sizes) for size in value.shape)
            assert number(slot.size, sizes) == 4 * elements
            assert number(slot.offset, sizes) + 4 * elements <= number(plan.arena_size, sizes)
        rng = np.random.default_rng(0)
        a, m = (rng.normal(size=size).astype(np.float32) for size in ((sizes["b"], sizes["s"], 4), (4, 4)))
        got = PlannedGraph(plan, prove=True).bind({"w": m}).run({"x": a})
        inner = np.tanh(a @ m)
        np.testing.assert_allclose(got["y"], inner @ m + a, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(got["sums"], inner.sum(-1, keepdims=True), rtol=1e-5, atol=1e-6)


@pytest.mark.slow
def test_trap_44_slices_are_not_clamped() -> None:
    """Binding a size below the end of a slice shortens the slice, and what reads it computes something else.

    A slice has the length that it was written with; an axis that is too short for it is refused.
    """
    for whole, start, stop in ((4, 2, 8), (4, 5, 5), (4, -1, 2), (4, 3, 2)):
        with pytest.raises(TypeRuleError, match="slice"):
            ops.slice_(input("x", f32[whole]), axis=0, start=start, stop=stop)
    graph = Graph.of(ops.exp(ops.slice_(input("x", f32["s"]), axis=0, start=2, stop=8)))
    for size in (0, 1, 4, 7):
        refused(graph, {"x": ones(size)}, {"s": size}, f"s at least 8 does not hold: found {size} and 8")
    np.testing.assert_allclose(compile(graph).run({"x": counting(9)})["y"], np.exp(np.arange(2.0, 8.0)), rtol=1e-6)
    last = Graph.of(ops.exp(ops.slice_(input("x", f32["s"]), axis=0, start=S - 3, stop=S - 1)))
    refused(last, {"x": ones(2)}, {"s": 2}, "s-3 at least 0 does not hold")
    np.testing.assert_allclose(compile(last).run({"x": counting(5)})["y"], np.exp([2.0, 3.0]), rtol=1e-6)


X, IMAGE = input("x", f32[4, 6]), input("image", f32[1, 2, 8, 8])
BODY = Subgraph((f32[4, 6],), (leaf.argument(0, f32[4, 6]) * 2.0,))
OTHER = Subgraph((f32[4, 6],), (leaf.argument(0, f32[4, 6]) * 3.0,))
EVERY_KIND: tuple[Value, ...] = (
    X,
    param("w", f32[4, "s"]),
    leaf.constant(np.arange(40.0), f32),
    leaf.constant(np.array(0.5), f32),
    ops.reduce_sum(X, axes=(-1,)),
    ops.flip(X, axes=(-1,)),
    ops.permute(X, order=(-1, -2)),
    ops.split(X, axis=-1, parts=2),
    ops.merge(X, axis=-1),
    ops.slice_(X, axis=-1, start=1, stop=5, step=2),
    ops.part(X, axis=-1, index=1, parts=3),
    ops.concat(X, X, axis=-1),
    ops.cum_sum(X, axis=-1, reverse=True),
    ops.cast(X, dtype=f64),
    ops.iota(size=S, dtype=f32),
    ops.nonzero(X, count=S),
    ops.top_k(X, k=2, axis=-1),
    ops.conv(IMAGE, param("kernel", f32[4, 1, 3, 3]), strides=(1, 2), padding=(1, 1, 1, 1), groups=2),
    ops.resize(IMAGE, axes=(-2, -1), sizes=(16, 16), mode="linear"),
    ops.lp_pool(IMAGE, window=(2, 2), p=2.0),
    ops.if_(input("flag", bool_[()]), X, then=BODY, otherwise=OTHER),
)
"""Values with attributes of every kind."""


def another(attr: Any) -> Any:
    """An attribute of the same kind that is not this one."""
    match attr:
        case None:
            return 1
        case bool():
            return not attr
        case str():
            return f"{attr}_"
        case tuple():
            items = cast("tuple[Any, ...]", attr)
            return (*items[:-1], another(items[-1])) if items else (1,)
        case leaf.Literal():
            return leaf.Literal(attr.array + np.float32(2**-10))
        case DType():
            return f32 if attr is f64 else f64
        case TensorType():
            return TensorType(attr.dtype, (*attr.shape, 1))
        case Subgraph():
            return OTHER if attr == BODY else BODY
        case _:
            return attr + 1


def mark(value: Value) -> str:
    return fingerprint.fingerprint(Graph.of(value, inputs=()), target="cpu", alignment=64, options={})


@pytest.mark.slow
def test_trap_45_a_key_covers_all_that_changes_the_result() -> None:
    """A cache whose key leaves out constants or axes hands out the program of another model.

    Every attribute of every value counts, every byte of a constant, the target, the options and the version.
    """
    for value in EVERY_KIND:
        for name, attr in value.attrs.items():
            changed = Value(value.op, value.operands, {**value.attrs, name: another(attr)}, value.known_type, ())
            assert mark(changed) != mark(value), f"{value.op.name} with another {name}"
    for one, other in ((0.0, -0.0), (1.0, 1.0 + 2**-23), (float("nan"), float("inf"))):
        graphs = [Graph.of(ops.exp(X) * leaf.constant(np.array(c), f32)) for c in (one, other)]
        assert len({compile(g).plan.fingerprint for g in graphs}) == 2
    graph = Graph.of(ops.relu(X @ param("w", f32[6, 6])))
    choices = product(("cpu", "cuda", "reference"), (False, True))
    marks = [compile(graph, target=target, strict=strict).plan.fingerprint for target, strict in choices]
    with MonkeyPatch.context() as patch:
        patch.setattr(fingerprint, "__version__", "0.0.0.other")
        marks.append(compile(graph).plan.fingerprint)
    assert len(set(marks)) == len(marks)
    assert compile(graph).plan.fingerprint == marks[0]


@pytest.mark.slow
def test_trap_46_a_known_size_that_meets_an_unknown_one_binds_it() -> None:
    """[s] + [4] is taken for [4] and forgotten: with s = 3 a kernel reads past the end, with s = 2 it wraps round.

    The sum records that s is 4, through fusion and regions; a size of 1 stretches and asks for nothing.
    """
    x, y = input("x", f32["s"]), input("y", f32[4])
    for value in (x + y, ops.relu(x * (y + 1.0)) - y, ops.where(ops.less(x, y), x, y)):
        graph = Graph.of(value)
        assert value.shape == (4,)
        assert "s equals 4" in map(str, compile(graph).graph.constraints)
        for size in (0, 2, 3, 5):
            refused(
                graph, {"x": ones(size), "y": ones(4)}, {"s": size}, f"s equals 4 does not hold: found {size} and 4"
            )
        # A size that turns out to be 1 stretches, in a compilation of its own.
        stretched, whole = ({"x": ones(size), "y": counting(4)} for size in (1, 4))
        np.testing.assert_array_equal(compile(graph).run(stretched)["y"], compile(graph).run(whole)["y"])
    got = compile(Graph.of(x * y)).run({"x": counting(4), "y": counting(4)})["y"]
    np.testing.assert_array_equal(got, [0, 1, 4, 9])
    two = Graph.of(input("x", f32["s", 3]) + input("y", f32["t", 3]))
    refused(two, {"x": ones(2, 3), "y": ones(3, 3)}, {"s": 2, "t": 3}, "s equals t does not hold: found 2 and 3")
    np.testing.assert_array_equal(compile(two).run({"x": ones(2, 3), "y": ones(1, 3)})["y"], 2 * ones(2, 3))
    free = Graph.of(x + input("one", f32[1]))
    assert not free.constraints
    np.testing.assert_array_equal(compile(free).run({"x": counting(3), "one": ones(1)})["y"], [1, 2, 3])


@pytest.mark.slow
def test_trap_47_a_specialised_program_has_a_report_of_its_own() -> None:
    """A report that is written before sizes are known goes on telling of fusions that were decided anew since.

    After specialising, the report has the sizes, prices and decisions of the program that runs.
    """

    @fused_op(shapes="x[*, m, k] w[k, n]")
    def few_rows(x: Value, w: Value) -> Value:
        """relu(x @ w) for a handful of rows."""
        return ops.relu(x @ w)

    @few_rows.cost
    def grows_with_the_square(x: Value, w: Value) -> Cost:
        rows = x.shape[-2]
        return Cost(rows * rows * 1_000, 0)

    graph = Graph.of(ops.relu(input("x", f32["s", 4]) @ param("w", f32[4, 4])))
    program = compile(graph, ops=[few_rows], without=["linear", "fuse_epilogues"], params={"w": counting(4, 4)})
    assert program.report.assumed_sizes == {"s": 128}
    assert (program.report.count("few_rows"), [m.reason for m in program.report.missed]) == (0, ["cost"])
    small, large = program.specialize({"s": 2}), program.specialize({"s": 512})
    assert (small.report.count("few_rows"), [m.reason for m in small.report.missed]) == (1, [])
    assert (large.report.count("few_rows"), [m.reason for m in large.report.missed]) == (0, ["cost"])
    for size, one in ((2, small), (512, large)):
        assert one.report.assumed_sizes == {}
        assert [k.type for k in one.report.kernels] == [str(s.value.type) for s in one.plan.steps]
        assert f"f32[{size}, 4]" in {k.type for k in one.report.kernels}
        assert one.report.ops_after.get("few_rows", 0) == one.graph.count(few_rows)
        assert one.report.arena_bytes == one.plan.arena_size
        wanted = judge.relu(ones(size, 4) @ counting(4, 4))
        np.testing.assert_array_equal(one.run({"x": ones(size, 4)})["y"], wanted)
    assert small.report.predicted_seconds < program.report.predicted_seconds < large.report.predicted_seconds
    assert program.report.assumed_sizes == {"s": 128}
