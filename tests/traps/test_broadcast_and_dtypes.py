"""Traps 15 to 21: shapes that stretch, dtypes that are not f32, sizes that are 0."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from dovetail import Graph, Value, ops
from dovetail.derive.fuse import fuse
from dovetail.dtypes import DType, bf16, bool_, c64, f16, f32, f64, i8, i32, i64, u8, u32, u64
from dovetail.errors import TypeRuleError
from dovetail.graphs import TensorType
from dovetail.ir.leaf import constant, input, param
from dovetail.library import ALL
from dovetail.library.gelu import gelu
from dovetail.library.linear import linear
from dovetail.library.rms_norm import rms_norm
from dovetail.ops.build import reshape
from dovetail.ops.primitive import Primitive
from dovetail.ops.region import region
from dovetail.passes.canonicalize import canonicalize
from dovetail.passes.legalize import legalize
from dovetail.passes.lowerings import LOWERINGS
from dovetail.passes.regions import LIMIT, RegionLimits, mark_regions
from dovetail.targets.cuda.claims import CLAIMS as CUDA
from dovetail.targets.reference.interpreter import evaluate
from tests.library import judge
from tests.library.judge import Array, near, one, run


def legal(graph: Graph) -> Graph:
    """The graph for a target whose kernels need operands of equal shape and whose regions are small."""
    return legalize(graph, CUDA, lowerings=LOWERINGS).graph


def ways(graph: Graph) -> list[Graph]:
    """The graph as it is written, in regions, and legalised, in regions and without them."""
    return [graph, mark_regions(graph).graph, legal(graph), mark_regions(legal(graph), CUDA.regions).graph]


def element(array: Array, index: tuple[int, ...]) -> Any:
    """What an array holds at an index of a larger shape: axes are aligned at the last, an axis of 1 stands still."""
    own = index[len(index) - array.ndim :]
    return array[tuple(0 if size == 1 else i for size, i in zip(array.shape, own, strict=True))]


def test_trap_15_an_operand_that_stretches_along_an_inner_axis() -> None:
    """Kernels that read element i modulo the operand's count are right for [8] against [4, 8] and for nothing else.

    [4, 1], [1, c, 1, 1] and their kin are read axis by axis, in regions and where broadcasts are spelled out.
    """
    cases = [
        ([4, 8], [4, 1], [8]),
        ([4, 1], [1, 8], [4, 1]),
        ([2, 3, 4, 5], [1, 3, 1, 1], [2, 1, 4, 1]),
        ([3, 1, 1], [2, 1, 4, 5], [5]),
    ]
    rng = np.random.default_rng(0)
    for shapes in cases:
        x, y, z = (input(name, TensorType.of(f32, *shape)) for name, shape in zip("xyz", shapes, strict=True))
        arrays = {name: rng.normal(size=shape) for name, shape in zip("xyz", shapes, strict=True)}
        result = np.broadcast_shapes(*(a.shape for a in arrays.values()))
        wanted = np.zeros(result)
        for index in np.ndindex(result):
            a, b, c = (element(array, index) for array in arrays.values())
            wanted[index] = max((a + b) * c - a, 0)
        for graph in ways(Graph.of(ops.relu((x + y) * z - x))):
            near(run(graph, arrays)["y"], wanted)


def wrap(number: int, bits: int, signed: bool) -> int:
    """A whole number as so many bits hold it."""
    number %= 1 << bits
    return number - (1 << bits) if signed and number >> (bits - 1) else number


def test_trap_16_chains_of_every_dtype_are_computed_in_it() -> None:
    """Elementwise kernels that compute everything in f32 lose the low bits of i64 and f64, and never wrap or overflow.

    A region computes in the dtypes of its steps: whole numbers wrap, f16 rounds at every step, bool and complex work.
    """
    huge, tiny = 2**60 + 1, 2.0**-40
    cases: list[tuple[DType, Callable[[Value, Value], Value], list[Any], list[Any], list[Any]]] = [
        (i8, lambda x, y: (x + y) * x, [100, -7], [100, 3], [wrap(200 * 100, 8, True), wrap(28, 8, True)]),
        (u8, lambda x, y: (x - y) * 3, [1, 250], [2, 1], [wrap(-3, 8, False), wrap(747, 8, False)]),
        (i64, lambda x, y: x * 3 + y, [huge, -huge], [1, 2], [3 * huge + 1, 2 - 3 * huge]),
        (u64, lambda x, y: (x + y) - 1, [2**64 - 1, 2**63], [1, 1], [2**64 - 1, 2**63]),
        (f64, lambda x, y: (x + y) - x, [1.0, 3.0], [tiny, -tiny], [tiny, -tiny]),
        (f16, lambda x, y: (x + y) - x, [2048.0, 60000.0], [1.0, 60000.0], [0.0, math.inf]),
        (bf16, lambda x, y: (x + y) - x, [256.0, 1.0], [1.0, 1.0], [0.0, 1.0]),
        (c64, lambda x, y: x * y + x, [1 + 2j, 3j], [2 - 1j, 1j], [5 + 5j, -3 + 3j]),
        (
            bool_,
            lambda x, y: ops.bit_and(ops.bit_or(x, y), ops.bit_not(x)),
            [True, False],
            [True, True],
            [False, True],
        ),
    ]
    for dtype, chain, x, y, wanted in cases:
        graph = Graph.of(chain(input("x", dtype[2]), input("y", dtype[2])))
        marked = mark_regions(graph).graph
        assert marked.count(region) == 1
        for form in ways(graph) if dtype in CUDA.dtypes else [marked]:
            got = evaluate(form, {"x": np.array(x, dtype.numpy), "y": np.array(y, dtype.numpy)})["y"]
            assert got.dtype == dtype.numpy
            assert got.tolist() == wanted, dtype


def test_trap_17_more_broadcast_inputs_than_a_kernel_takes() -> None:
    """A kernel with 16 slots for strides that is given 17 operands forgets the last, or writes behind its table.

    A region over the limit is cut, nothing is dropped, and the cut is reported.
    """
    shapes = [[4, 8], [4, 1], [1, 8], [8], [1]]
    many = [input(f"x{i}", TensorType.of(f32, *shapes[i % len(shapes)])) for i in range(23)]
    total = many[0]
    for i, one_more in enumerate(many[1:], 2):
        total = total + one_more * float(i)
    rng = np.random.default_rng(0)
    arrays = {f"x{i}": rng.normal(size=shapes[i % len(shapes)]) for i in range(23)}
    wanted = sum((np.ones((4, 8)) * arrays[f"x{i}"] * (i + 1) for i in range(23)), np.zeros((4, 8)))
    marked = mark_regions(Graph.of(total), RegionLimits(inputs=16))
    assert {m.reason for m in marked.missed} == {LIMIT}
    for graph in (marked.graph, mark_regions(legal(Graph.of(total)), CUDA.regions).graph):
        assert 1 < max(len(v.operands) for v in graph.values if v.op is region) <= 16
        near(run(graph, arrays)["y"], wanted)
    free = mark_regions(Graph.of(total)).graph
    assert free.count(region) == 1
    near(run(free, arrays)["y"], wanted)


@pytest.mark.slow
def test_trap_18_comparing_yields_bool_everywhere() -> None:
    """Systems whose comparisons yield 0.0 and 1.0 in the operands' dtype store them as f32 and read them as bytes.

    A comparison is bool for every dtype and on every way: as it is written, in a region, legalised, lifted.
    """
    tests: list[tuple[Primitive, Callable[[Any, Any], bool]]] = [
        (ops.equal, lambda a, b: a == b),
        (ops.not_equal, lambda a, b: a != b),
        (ops.less, lambda a, b: a < b),
        (ops.less_equal, lambda a, b: a <= b),
        (ops.greater, lambda a, b: a > b),
        (ops.greater_equal, lambda a, b: a >= b),
    ]
    for dtype in (bool_, i8, i64, u8, u64, f16, bf16, f32, f64):
        x, y = np.array([[0, 1, 1]], dtype.numpy), np.array([[1], [0]], dtype.numpy)
        for op, holds in tests:
            compared = op(input("x", dtype[1, 3]), input("y", dtype[2, 1]))
            assert compared.type == bool_[2, 3]
            graph = Graph.of(ops.bit_not(compared))
            wanted = [[not holds(a, b) for a in x[0]] for b in y[:, 0]]
            for form in ways(graph):
                for lift in (False, True):
                    got = evaluate(form, {"x": x, "y": y}, lift=lift)["y"]
                    assert (got.dtype, got.tolist()) == (np.bool_, wanted)


def test_trap_19_the_condition_of_a_where_keeps_its_dtype() -> None:
    """A region that casts every operand to the dtype of its result casts the condition too, and 256 as u8 is false.

    The condition is bool or an error, and it is bool inside a region and where it is stretched.
    """
    x, y = input("x", u8[3, 4]), input("y", u8[4])
    for wrong in (f32[3, 1], i64[3, 1], u8[3, 1]):
        with pytest.raises(TypeRuleError, match="where"):
            ops.where(input("c", wrong), x, y)
    graph = Graph.of(ops.where(input("c", bool_[3, 1]), x, y) + x)
    arrays = {
        "c": np.array([[True], [False], [True]]),
        "x": np.arange(12, dtype=np.uint8).reshape(3, 4),
        "y": np.full(4, 200, np.uint8),
    }
    chosen = [[i * 4 + j if i != 1 else 200 for j in range(4)] for i in range(3)]
    wanted = [[chosen[i][j] + i * 4 + j for j in range(4)] for i in range(3)]
    for form in ways(graph):
        for value in form.values:
            inside = [value] if value.op is not region else value.attrs["body"].values
            assert all(v.operands[0].dtype is bool_ for v in inside if v.op is ops.where)
        got = evaluate(form, arrays)["y"]
        assert (got.dtype, got.tolist()) == (np.uint8, wanted)


def test_trap_20_constants_take_the_dtype_that_is_asked_for() -> None:
    """Constants that pass through f32 turn 2**53 + 1 into 2**53 and 0.1 into 0.10000000149.

    A constant has the dtype asked for and all of its bits; a number beside a tensor takes the tensor's dtype.
    """
    exact: list[tuple[Any, DType]] = [
        (2**53 + 1, i64),
        (2**64 - 1, u64),
        (-(2**31), i32),
        (2**32 - 1, u32),
        (0.1, f64),
        (1e300, f64),
        (True, bool_),
        (1 + 2j, c64),
        (0.5, f16),
    ]
    for number, dtype in exact:
        made = evaluate(Graph.of(constant(number, dtype)), {})["y"]
        assert (made.dtype, made.item()) == (dtype.numpy, number)
        if dtype is not bool_:
            beside = ops.maximum if dtype is not c64 else ops.add
            zero = np.zeros(1, dtype.numpy)
            got = evaluate(Graph.of(beside(input("x", dtype[1]), number)), {"x": zero})["y"]
            assert (got.dtype, got.item()) == (dtype.numpy, max(number, 0) if dtype is not c64 else number)
    for dtype, tolerance in ((f64, 1e-15), (f16, 1e-3)):
        x = np.linspace(-3, 3, 7).astype(dtype.numpy)
        got = evaluate(Graph.of(one(gelu.body(input("x", dtype[7])))), {"x": x})["y"]
        assert got.dtype == dtype.numpy
        np.testing.assert_allclose(got.astype(float), judge.gelu(x.astype(float)), rtol=tolerance, atol=tolerance)
    hundred = np.array([100])
    folded = canonicalize(Graph.of(constant(hundred, i8) + constant(hundred, i8) + input("x", i8[1]))).outputs["y"]
    assert {v.dtype for v in (folded, *folded.operands)} == {i8}
    assert evaluate(Graph.of(folded), {"x": np.array([1], np.int8)})["y"].tolist() == [201 - 256]


def test_trap_21_sizes_of_zero() -> None:
    """An empty axis divides by zero, counts as one, or leaves memory as it was found.

    The sum of nothing is 0, an empty result has its shape, on every way a graph can take.
    """
    empty, three = np.zeros, [1.0, 2.0, 3.0]
    x, w, b = input("x", f32[2, 0]), param("w", f32[0, 3]), param("b", f32[3])
    row, column, wide = input("r", f32[2, 0]), input("c", f32[2, 1]), input("m", f32[0, 3])
    left, right = input("l", f32[4, 0, 2]), input("k", f32[0, 4, 3])
    none = input("n", f32[0, 4, 2])
    loop = ops.scan(lambda c, s: (c + s, c * s), [column], [input("s", f32[0, 2, 1])])
    batched = input("t", f32[0, 4, 3])
    cases: list[tuple[Value, Sequence[Any] | Array]] = [
        (x @ w + b, [three, three]),
        (ops.relu(wide @ param("v", f32[3, 4])), empty((0, 4))),
        (row + column, empty((2, 0))),
        (ops.relu(row * column + 1.0), empty((2, 0))),
        (ops.reduce_sum(row, axes=(-1,)) + 5.0, [[5.0], [5.0]]),
        (ops.reduce_max(wide, axes=(-2,)), [[-math.inf] * 3]),
        (ops.concat(row, column, axis=-1), [[1.0], [2.0]]),
        (reshape(left, (2, 0, 7)), empty((2, 0, 7))),
        (ops.dot(left, right, left=(-2,), right=(-3,)), empty((4, 2, 4, 3))),
        (ops.dot(none, batched, left=(-2,), right=(-2,), left_batch=(-3,), right_batch=(-3,)), empty((0, 2, 3))),
        (ops.dot(left, none, left=(-3, -1), right=(-2, -1)), empty((0, 0))),
        (rms_norm(wide, eps=0.5), empty((0, 3))),
        (loop.carries[0], [[1.0], [2.0]]),
        (loop.outputs[0], empty((0, 2, 1))),
    ]
    arrays = {"b": np.array(three), "c": np.array([[1.0], [2.0]])}
    for value, wanted in cases:
        fused = fuse(Graph.of(value), ALL, always=True).graph
        shapes = {str(v.attrs["name"]): v.shape for v in (*fused.inputs, *fused.parameters)}
        feeds = {name: arrays.get(name, np.zeros([int(str(s)) for s in shape])) for name, shape in shapes.items()}
        for form in ways(fused):
            got = run(form, feeds)["y"]
            assert got.shape == np.shape(wanted)
            np.testing.assert_array_equal(got, wanted)
    assert fuse(Graph.of(x @ w + b), ALL, always=True).graph.outputs["y"] is linear(x, w, b)
