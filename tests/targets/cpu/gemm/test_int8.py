"""Matrix products of bytes: exact against NumPy in int64, and with epilogues against float64."""

from __future__ import annotations

import numpy as np
import pytest

from dovetail import Graph, ops
from dovetail.dtypes import f32
from dovetail.ir import leaf
from dovetail.ir.dim import symbol
from dovetail.ir.dtype import DType, i8, i32, u8
from dovetail.kernels.device import CpuDevice
from dovetail.kernels.spec import Job
from dovetail.passes.epilogues import fuse_epilogues
from dovetail.passes.regions import mark_regions
from dovetail.passes.widen import widen_inside
from dovetail.plan.plan import make_plan
from dovetail.targets.cpu.claims import CLAIMS as CPU
from dovetail.targets.cpu.gemm.int8.tile import byte_tile_function, byte_tile_of
from dovetail.targets.cpu.isa import Host
from dovetail.targets.cpu.native import NativeGraph
from tests.covering import covering
from tests.kernels.bytes import DEVICES, EVERY_DEVICE, EVERY_TILING, above, image, numbers, run
from tests.kernels.machines import code_for, on_stack

MACHINES = {
    "avx512_vnni": Host("x86_64-unknown-linux-gnu", "icelake-server", "+avx512vnni,-prefer-256-bit", 512, 32),
    "neon": Host("aarch64-unknown-linux-gnu", "neoverse-n1", "+dotprod", 128, 32),
}


@EVERY_TILING
@pytest.mark.parametrize("k", [1, 3, 4, 33, 384])
@pytest.mark.parametrize("n", [1, 15, 48, 49, 100])
def test_every_number_of_rows_of_one_compilation(
    k: int, n: int, device: CpuDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    y = above(image(u8, symbol("m"), k), 7) @ above(leaf.param("w", i8[k, n]), None)
    w = numbers(i8, k, n, seed=1)
    feeds = [{"x": numbers(u8, m, k)} for m in (1, 2, 3, 4, 5, 8, 9, 64, 65, 130, 0)]
    for feed, got in zip(feeds, run(y, feeds, {"w": w}, device, "int8_", monkeypatch), strict=True):
        assert (got == (feed["x"].astype(np.int64) - 7) @ w.astype(np.int64)).all()


ZEROS = {u8: (0, 255, 128), i8: (0, -128, 127)}
SIGNS = covering(("none", "one", "columns"), (i8, u8), (u8, i8), (False, True), [*DEVICES], strength=3)


@pytest.mark.parametrize(("zeros", "of_weights", "dtype", "of_a_run", "device"), SIGNS)
def test_signs_and_zero_points(
    zeros: str, of_weights: DType, dtype: DType, of_a_run: bool, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    k, n = 21, 19
    shape = {"none": None, "one": (), "columns": (n,)}[zeros]
    low = None if shape is None else leaf.param("z", of_weights[shape])
    w = numbers(of_weights, k, n, seed=1)
    z = np.zeros((), of_weights.numpy) if shape is None else numbers(of_weights, *shape, seed=2).reshape(shape)
    for zero in ZEROS[dtype]:
        x = above(image(dtype, 5, k), leaf.input("zero", dtype[()]) if of_a_run else zero)
        y = x @ above(leaf.param("w", of_weights[k, n]), low)
        feed = {"x": numbers(dtype, 5, k)}
        expected = (feed["x"].astype(np.int64) - zero) @ (w.astype(np.int64) - z)
        if of_a_run:
            feed["zero"] = np.array(zero, dtype.numpy)
        params = {"w": w} if low is None else {"w": w, "z": z}
        (got,) = run(y, [feed], params, DEVICES[device], "int8_", monkeypatch)
        assert (got == expected).all(), f"a zero point of {zero}"


@EVERY_DEVICE
def test_sums_wrap_as_integers_do(device: CpuDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    k = 70_000
    y = above(image(u8, 2, k), None) @ above(leaf.param("w", i8[k, 3]), None)
    x, w = np.full((2, k), 255, np.uint8), np.full((k, 3), -128, np.int8)
    (got,) = run(y, [{"x": x}], {"w": w}, device, "int8_", monkeypatch)
    assert (got == np.int64(-128 * 255 * k).astype(np.int32)).all()


@EVERY_DEVICE
def test_weights_side_by_side_and_axes_in_front(device: CpuDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    given = {name: numbers(dtype, 24, n, seed=n) for name, dtype, n in (("q", i8, 8), ("k", u8, 9), ("v", i8, 40))}
    parts = [leaf.param(name, (i8 if w.dtype == np.int8 else u8)[w.shape]) for name, w in given.items()]
    w = ops.concat(*[above(part, 3 if part.dtype is u8 else None) for part in parts], axis=-1)
    feeds = [{"x": numbers(u8, b, 3, 24)} for b in (1, 5, 30)]
    right = np.concatenate([w.astype(np.int64) - 3 * (w.dtype == np.uint8) for w in given.values()], axis=1)
    found = run(above(image(u8, symbol("b"), 3, 24), 9) @ w, feeds, given, device, "int8_", monkeypatch)
    for feed, got in zip(feeds, found, strict=True):
        assert (got == (feed["x"].astype(np.int64) - 9) @ right).all()


@EVERY_DEVICE
def test_transposed_weights_and_strided_rows(device: CpuDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    x = ops.permute(image(i8, 13, 6), order=(-1, -2))
    w = ops.permute(above(leaf.param("w", i8[10, 13]), None), order=(-1, -2))
    given, feed = {"w": numbers(i8, 10, 13)}, {"x": numbers(i8, 13, 6, seed=3)}
    (got,) = run(above(x, -5) @ w, [feed], given, device, "int8_", monkeypatch)
    assert (got == (feed["x"].astype(np.int64).T + 5) @ given["w"].astype(np.int64).T).all()


def requantised(device: CpuDevice, monkeypatch: pytest.MonkeyPatch, threads: int) -> list[bytes]:
    """Scale, bias, activation, rounding and clamping as an epilogue, with a summand of the result's shape."""
    m, k, n = 37, 160, 50
    x, w = above(image(u8, m, k), leaf.input("zero", u8[()])), above(leaf.param("w", i8[k, n]), None)
    scale, bias, more = leaf.param("s", f32[n]), leaf.param("b", f32[n]), leaf.input("d", f32[m, n])
    floats = ops.relu(ops.cast(x @ w, dtype=f32) * scale + bias) + more
    y = ops.cast(ops.clip(ops.round_(floats / 0.5) + 3.0, 0.0, 255.0), dtype=u8)
    rng = np.random.default_rng(0)
    feed = {"x": numbers(u8, m, k), "zero": np.array(100, np.uint8), "d": rng.normal(size=(m, n)).astype(np.float32)}
    params = {"w": numbers(i8, k, n), "s": rng.uniform(1e-5, 1e-3, n).astype(np.float32)}
    params["b"] = rng.normal(size=n).astype(np.float32)
    graph = mark_regions(widen_inside(Graph.of(y), CPU).graph).graph
    joined = fuse_epilogues(graph.settled(), CPU).graph
    (result,) = joined.outputs.values()
    assert len([v for v in joined.values if v.operands and v.op.name == "region"]) == 1, "one kernel"
    (got,) = run(result, [feed], params, device, "int8_", monkeypatch, threads)
    sums = (feed["x"].astype(np.float64) - 100) @ params["w"].astype(np.float64)
    exact = np.maximum(sums * params["s"] + params["b"], 0) + feed["d"]
    expected = np.clip(np.rint(exact / 0.5) + 3, 0, 255)
    near_a_half = np.abs(exact / 0.5 - np.floor(exact / 0.5) - 0.5) < 1e-3
    assert (got == expected)[~near_a_half].all()
    assert near_a_half.mean() < 0.05
    return [got.tobytes()]


@EVERY_DEVICE
def test_requantisation_is_an_epilogue_whatever_the_threads(device: CpuDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    found = [requantised(device, monkeypatch, threads) for threads in (1, 2, 3)]
    assert found[0] == found[1] == found[2]


@pytest.mark.slow
def test_what_is_not_bytes_is_left_to_other_code() -> None:
    x, w = leaf.input("x", i32[4, 8]), leaf.param("w", i32[8, 16])
    for y in (x @ above(leaf.param("v", i8[8, 16]), None), above(image(u8, 4, 8), None) @ w):
        native = NativeGraph(make_plan(widen_inside(Graph.of(y), CPU).graph, target=CPU))
        names = [job.kernel.name for part in native.sections for job in part.jobs if isinstance(job, Job)]
        assert names
        assert not any(name.startswith("int8_") for name in names)


@pytest.mark.parametrize("name", MACHINES)
def test_the_tile_is_dot_products_in_registers(name: str) -> None:
    machine = MACHINES[name]
    tile = byte_tile_of(machine.device)
    assert tile is not None
    code = code_for(machine, byte_tile_function(tile, tile.mr)[0].text, optimize=False)
    dots = [line for line in code.splitlines() if "vpdpbusd" in line or "sdot" in line]
    assert len(dots) == tile.mr * tile.shape.vectors
    assert not on_stack("\n".join(code.splitlines()[code.splitlines().index(dots[0]) :]).split("ret")[0])
