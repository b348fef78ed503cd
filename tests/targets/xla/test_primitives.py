"""Primitives on XLA where NumPy is particular; what XLA cannot have is refused by a named condition."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dovetail import Builder, Graph, compile, ops
from dovetail.errors import BindError, DeviceError, UnsupportedError
from dovetail.ir.dtype import DType, bool_, c64, f16, f32, f64, i8, i32, i64, u8, u32
from dovetail.ir.leaf import constant, input
from dovetail.ir.literal import Array
from dovetail.ir.value import Value
from dovetail.ops import tracing
from dovetail.ops.primitive import Primitive
from dovetail.targets.reference.interpreter import evaluate
from dovetail.targets.xla.claims import HOST, REWRITTEN, SIZED_BY_DATA
from tests.targets.cuda.test_every_primitive import given, sample

pytest.importorskip("jax")


def test_every_primitive_has_a_meaning_or_is_named_as_without_one() -> None:
    table: Any = pytest.importorskip("dovetail.targets.xla.meanings.table")
    trace: Any = pytest.importorskip("dovetail.targets.xla.trace")
    homes = [*table.MEANINGS, *trace.CONTROL, *HOST, *SIZED_BY_DATA, *REWRITTEN, "refusal"]
    assert sorted(homes) == sorted(op.name for op in ops.ALL)


def test_what_numpy_computes_runs_with_a_cache(tmp_path: Path) -> None:
    graph = Graph.of({"y": sample(next(op for op in ops.ALL if op.name == HOST[0]))})
    feeds = given(graph)
    for _ in range(2):  # JAX cannot write an executable that calls back
        found = compile(graph, target="xla", cache=str(tmp_path)).run(feeds)["y"]
        np.testing.assert_array_equal(found, evaluate(graph, feeds)["y"])


@pytest.mark.parametrize("name", HOST)
def test_the_report_tells_what_numpy_computes(name: str) -> None:
    graph = Graph.of({"y": sample(next(op for op in ops.ALL if op.name == name))})
    hosted = [kernel.op for kernel in compile(graph, target="xla").report.kernels if kernel.on_host]
    assert hosted == [name]


@pytest.mark.parametrize("name", SIZED_BY_DATA)
def test_sizes_that_data_decides_are_refused(name: str) -> None:
    with pytest.raises(UnsupportedError, match="data decides this one"):
        compile(Graph.of({"y": sample(next(op for op in ops.ALL if op.name == name))}), target="xla")


def agrees(value: Value, **feeds: Array) -> None:
    graph = Graph.of({"y": value})
    found = compile(graph, target="xla").run(feeds)["y"]
    wanted = compile(graph, target="reference").run(feeds)["y"]
    assert found.dtype == wanted.dtype
    np.testing.assert_array_equal(found, wanted)


SPECIAL = {
    f32: [0.0, -0.0, 1.5, -2.5, np.inf, -np.inf, np.nan, 3e9, -3e38],
    f64: [0.0, -0.0, 0.5, -1e300, np.inf, np.nan, 2.0**63],
    f16: [0.0, -0.0, 65504.0, np.inf, -np.inf, np.nan, 2.5],
    i8: [0, 1, -1, 127, -128, 7],
    i32: [0, 1, -1, 2**31 - 1, -(2**31), 33],
    i64: [0, -1, 2**63 - 1, -(2**63), 64],
    u8: [0, 1, 255, 128, 9],
    u32: [0, 1, 2**32 - 1, 31, 32],
    bool_: [False, True],
}


def pairs(dtype: DType) -> tuple[Value, Value, dict[str, Array]]:
    """Two inputs, and every pair of special numbers."""
    numbers = np.array(SPECIAL[dtype], dtype.numpy)
    left, right = (a.reshape(-1) for a in np.meshgrid(numbers, numbers))
    x, y = input("x", dtype[len(left)]), input("y", dtype[len(left)])
    return x, y, {"x": left, "y": right}


@pytest.mark.parametrize("dtype", [i8, i32, i64, u8, u32], ids=lambda d: d.name)
@pytest.mark.parametrize("op", [ops.div, ops.rem, ops.mod, ops.pow_, ops.shift_left, ops.shift_right], ids=str)
def test_integers_divide_and_shift_as_numpy_has_it(op: Primitive, dtype: DType) -> None:
    x, y, feeds = pairs(dtype)
    agrees(op(x, y), **feeds)


@pytest.mark.parametrize("dtype", [f16, f32, f64], ids=lambda d: d.name)
@pytest.mark.parametrize("op", [ops.maximum, ops.minimum, ops.less, ops.equal], ids=str)
def test_zeros_infinities_and_nan_compare_as_numpy_has_it(op: Primitive, dtype: DType) -> None:
    x, y, feeds = pairs(dtype)
    result = op(x, y)
    agrees(result, **feeds)
    if result.dtype is not bool_:
        # Signs too, but for those of NaN, which differ between machines.
        number = ops.where(ops.equal(result, result), result, constant(np.zeros((), dtype.numpy)))
        agrees(ops.bitcast(number, source=dtype.name, target=f"i{dtype.bits}"), **feeds)


@pytest.mark.parametrize("to", [i8, i32, i64, u8, u32, bool_, f16, f32], ids=lambda d: d.name)
@pytest.mark.parametrize("of", [f32, f64, i32, i64, u32, bool_], ids=lambda d: d.name)
def test_casts_keep_to_the_range(of: DType, to: DType) -> None:
    x, _, feeds = pairs(of)
    agrees(ops.cast(x, dtype=to), x=feeds["x"])


def test_complex_numbers() -> None:
    x, y = input("x", f32[4]), input("y", f32[4])
    z = ops.complex_(x, y)
    feeds = {"x": np.array([1, -2, 0, 3], np.float32), "y": np.array([2, 1, -1, 0], np.float32)}
    assert z.dtype is c64
    agrees(ops.real(z * z) + ops.imag(z), **feeds)


def test_the_last_of_equal_indices_is_written() -> None:
    x, at, new = input("x", f32[3, 2]), input("at", i64[5, 1]), input("new", f32[5, 2])
    feeds = {
        "x": np.zeros((3, 2), np.float32),
        "at": np.array([[1], [1], [-2], [0], [1]]),
        "new": np.arange(10, dtype=np.float32).reshape(5, 2),
    }
    agrees(ops.scatter_nd(x, at, new), **feeds)


@pytest.mark.parametrize(("descending", "axis"), [(False, -1), (True, -1), (True, -2)])
def test_equal_elements_keep_their_order(descending: bool, axis: int) -> None:
    x = input("x", f32[4, 6])
    numbers = np.array([2, 1, np.nan, 1, 2, -0.0] * 4, np.float32).reshape(4, 6)
    agrees(ops.sort(x, axis=axis, descending=descending)[1], x=numbers)


def test_an_index_out_of_range_is_the_error_that_numpy_gives() -> None:
    x, at = input("x", f32[3, 2]), input("at", i64[2])
    program = compile(Graph.of({"y": ops.gather(x, at, axis=-2)}), target="xla")
    feeds = {"x": np.ones((3, 2), np.float32), "at": np.array([0, -3])}
    np.testing.assert_array_equal(program.run(feeds)["y"], np.ones((2, 2), np.float32))
    with pytest.raises(BindError, match="index 3 into an axis of size 3"):
        program.run({**feeds, "at": np.array([0, 3])})


def loop(at: Array, start: float) -> tuple[Graph, dict[str, Array]]:
    """A loop that reads a table until a sum is large, and branches on its size."""
    table, index, begin = input("table", f32[4]), input("index", i64[()]), input("begin", f32[()])

    def condition(total: Value, place: Value, of: Value) -> Value:
        return ops.less(total, 10.0)

    def body(total: Value, place: Value, of: Value) -> tuple[Value, Value]:
        return total + ops.gather(of, place, axis=-1), place

    total = tracing.while_loop(condition, body, [begin, index], captures=[table])[0][0]
    larger = tracing.cond(ops.greater(total, 11.0), lambda t: (t * 2.0,), lambda t: (t - 1.0,), total)
    feeds = {"table": np.array([1, 2, 3, 4], np.float32), "index": at, "begin": np.array(start, np.float32)}
    return Graph.of({"y": larger[0]}), feeds


def test_loops_and_branches() -> None:
    for at, start in ((0, 0.0), (3, 0.0), (2, 20.0)):
        graph, feeds = loop(np.array(at), start)
        agrees(graph.outputs["y"], **feeds)


def test_an_error_within_a_loop_is_found() -> None:
    graph, feeds = loop(np.array(7), 0.0)
    with pytest.raises(BindError, match="index 7 into an axis of size 4"):
        compile(graph, target="xla").run(feeds)


def test_scans_in_both_directions() -> None:
    xs, start = input("xs", f32[5, 3]), input("start", f32[3])
    feeds = {"xs": np.arange(15, dtype=np.float32).reshape(5, 3), "start": np.ones(3, np.float32)}
    for reverse in (False, True):
        found = tracing.scan(lambda c, x: (c * 0.5 + x, c), [start], [xs], reverse=reverse)
        agrees(ops.concat(found.outputs[0], ops.unsqueeze(found.carries[0], axes=(-2,)), axis=-2), **feeds)


def test_a_donated_input_is_overwritten() -> None:
    builder = Builder("count")
    total, x = builder.input("total", f32[3]), builder.input("x", f32[3])
    builder.output("next", total + x, into="total")
    given = np.zeros(3, np.float32)
    found = compile(builder.graph(), target="xla").run({"total": given, "x": np.ones(3, np.float32)})["next"]
    assert found is given and given.tolist() == [1, 1, 1]


def test_what_xla_reports_is_one_error(monkeypatch: pytest.MonkeyPatch) -> None:
    jax: Any = pytest.importorskip("jax")
    run: Any = pytest.importorskip("dovetail.targets.xla.run")

    def fails(*_: Any) -> Any:
        raise jax.errors.JaxRuntimeError("INTERNAL: a device is lost\nmore lines")

    x = input("x", f32[3])
    program = compile(Graph.of({"y": x + 1.0}), target="xla")
    monkeypatch.setattr(run.XlaRunner, "compiled", fails)
    with pytest.raises(DeviceError, match=r"XLA: INTERNAL: a device is lost\n  hint"):
        program.run({"x": np.ones(3, np.float32)})


def test_weights_are_prepared_when_they_are_bound() -> None:
    builder = Builder("step")
    x = builder.input("x", f32[2, 3])
    w = builder.param("w", f32[3, 3])
    builder.output("y", ops.matmul(x, ops.permute(w, order=(-1, -2)) * constant(np.asarray(2, np.float32))))
    program = compile(builder.graph(), target="xla")
    weights = np.arange(9, dtype=np.float32).reshape(3, 3)
    program.bind({"w": weights})
    feeds = np.ones((2, 3), np.float32)
    np.testing.assert_array_equal(program.run({"x": feeds})["y"], feeds @ (weights.T * 2))
