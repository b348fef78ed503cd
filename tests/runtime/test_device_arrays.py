"""Outputs that stay in the runtime's memory, as inputs of the next run, on targets that run in host memory."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import dovetail
from dovetail import Builder, Graph, ops
from dovetail.dtypes import DType, bf16, bool_, f8e4m3fn, f16, f32, i64
from dovetail.errors import BindError, OptionError, UnsupportedError
from dovetail.ir.dtype import u4
from dovetail.targets.runtime.arrays import dlpack
from dovetail.targets.runtime.arrays.buffer import HostBuffer
from dovetail.targets.runtime.arrays.device_array import DeviceArray, Lease, host_array

Array = NDArray[Any]
TARGETS = ["cpu", "reference"]
RANDOM = np.random.default_rng(5)


def numbers(*shape: int) -> Array:
    return RANDOM.normal(size=shape).astype(np.float32)


def activated(scale: float = 1.0) -> Graph:
    x = dovetail.input("x", f32["n", 6])
    h = ops.tanh(x) * scale
    return Graph.of({"h": h, "total": ops.reduce_sum(h, axes=(-1,)), "turned": ops.permute(h, order=(-1, -2)), "x": x})


@pytest.mark.parametrize("target", TARGETS)
def test_outputs_stay_and_are_inputs_again(target: str) -> None:
    graph = activated()
    program, other = dovetail.compile(graph, target=target), dovetail.compile(activated(2.0), target=target)
    for rows in (3, 5):
        x = numbers(rows, 6)
        found = program.run({"x": x}, outputs="device")
        expected = dovetail.evaluate(graph, {"x": x}, lift=True)
        assert list(found) == list(expected)
        for name, array in found.items():
            assert isinstance(array, DeviceArray) and array.device == "cpu" and array.dtype == np.float32
            assert array.shape == expected[name].shape and array.nbytes == 4 * array.size
            np.testing.assert_allclose(array, expected[name], rtol=2e-5, atol=1e-6)
        for next_program in (program, other):
            again = next_program.run({"x": found["h"]})
            np.testing.assert_array_equal(again["h"], next_program.run({"x": found["h"].numpy()})["h"])
            assert again["h"].base is None or isinstance(again["h"], np.ndarray)
        assert not np.shares_memory(found["x"].numpy(), x), "an output is never the caller's input"
        chained = other(x=found["h"])
        np.testing.assert_array_equal(chained["h"], other.run({"x": found["h"]}, outputs="device")["h"].numpy())


@pytest.mark.slow
def test_views_are_without_a_copy_and_own_the_memory() -> None:
    program = dovetail.compile(activated())
    h = program.run({"x": numbers(3, 6)}, outputs="device")["h"]
    view, shared = np.asarray(h), np.from_dlpack(h)
    assert np.shares_memory(view, h.numpy()) and np.shares_memory(shared, view)
    assert h.address == view.ctypes.data and h.__dlpack_device__() == (1, 0)
    before = view.copy()
    h.free()
    gc.collect()
    np.testing.assert_array_equal(view, before)
    np.testing.assert_array_equal(shared, before)
    assert not hasattr(h, "__cuda_array_interface__") and "freed" in repr(h)


def test_memory_goes_with_its_last_owner() -> None:
    done: list[str] = []

    def leased(name: str) -> DeviceArray:
        return DeviceArray(Lease(HostBuffer(np.zeros(16, np.uint8)), lambda: done.append(name)), (4,), f32)

    array = leased("dropped")
    del array
    array = leased("freed")
    array.free()
    array.free()
    array = leased("in a capsule that no library took")
    capsule = array.__dlpack__()
    array.free()
    assert len(done) == 2
    del capsule
    taken = leased("taken by a library")
    view = np.from_dlpack(taken)
    there = weakref.ref(taken)
    del taken
    assert there() is None and len(done) == 3
    del view
    assert done == ["dropped", "freed", "in a capsule that no library took", "taken by a library"]


@pytest.mark.parametrize("dtype", [f32, f16, i64, bool_, dovetail.dtypes.u8, dovetail.dtypes.f64])
def test_every_dtype_of_numpy_goes_through_dlpack(dtype: DType) -> None:
    x = np.arange(6).astype(dtype.numpy).reshape(2, 3)
    seen = np.from_dlpack(host_array(x, dtype))
    assert seen.dtype == x.dtype and np.array_equal(seen, x) and np.shares_memory(seen, x)


def test_other_dtypes_have_a_capsule_or_a_reason() -> None:
    assert "dltensor" in repr(host_array(np.zeros(4, bf16.numpy), bf16).__dlpack__())
    for dtype in (f8e4m3fn, u4):
        with pytest.raises(UnsupportedError, match="DLPack of"):
            dlpack.capsule(None, 0, (1,), dtype, (dlpack.CPU, 0))


def counting() -> Graph:
    b = Builder("count")
    s, g = b.input("s", f32["n", 6]), b.input("g", f32["n", 6])
    b.output("t", s + g, into="s")
    b.output("size", ops.reduce_sum(s * g, axes=(-1,)))
    return b.graph()


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("outputs", ["host", "device"])
def test_donated_arrays_are_updated_where_they_are(target: str, outputs: Any) -> None:
    program = dovetail.compile(counting(), target=target)
    run: Any = program.run
    mine, g = numbers(4, 6), numbers(4, 6)
    before = mine.copy()
    state = program.to_device({"s": mine})["s"]
    at = state.address
    for step in range(1, 4):
        found = run({"s": state, "g": g}, outputs=outputs)
        assert found["t"] is state and state.address == at
        np.testing.assert_allclose(state.numpy(), before + step * g.astype(np.float64), rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(mine, before)
    found = run({"s": mine, "g": g}, outputs=outputs)
    assert np.shares_memory(np.asarray(found["t"], np.float32), mine) and not np.array_equal(mine, before)


@pytest.mark.parametrize("target", TARGETS)
def test_what_does_not_fit_is_one_typed_error(target: str) -> None:
    program = dovetail.compile(counting(), target=target)
    there = program.to_device({"s": numbers(4, 6), "g": numbers(4, 6)})
    freed = program.to_device({"g": numbers(4, 6)})["g"]
    freed.free()
    elsewhere = host_array(numbers(4, 6), f32)
    elsewhere.device = "cuda:0"
    for given, message in (
        (freed, "was freed"),
        (elsewhere, "the input g is on cuda:0, and the program runs on cpu"),
        (host_array(numbers(4, 6).astype(np.float64), dovetail.dtypes.f64), "dtype float64"),
        (host_array(numbers(3, 6), f32), "n"),
        (host_array(numbers(4, 5), f32), "g"),
        (there["s"], "the donated input s shares memory with the input g"),
    ):
        for outputs in ("host", "device"):
            with pytest.raises(BindError, match=message):
                program.run({**there, "g": given}, outputs=outputs)
    with pytest.raises(BindError, match="no input named 'h'"):
        program.to_device({"h": numbers(4, 6)})
    with pytest.raises(OptionError, match="outputs='moon'"):
        program.run(there, outputs="moon")  # pyright: ignore[reportCallIssue, reportArgumentType]


def test_profiles_take_device_arrays() -> None:
    program = dovetail.compile(counting())
    there = program.to_device({"s": numbers(4, 6), "g": numbers(4, 6)})
    before = there["s"].numpy().copy()
    program.profile(there, runs=2)  # pyright: ignore[reportArgumentType]
    np.testing.assert_array_equal(there["s"].numpy(), before)
